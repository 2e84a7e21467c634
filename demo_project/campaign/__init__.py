"""The shop's campaign desk: a coupon for each recipient, sent once by SMS."""
