"""What Django's models cannot say: the fence, the rules of a job's row, the append-only audit log, storage."""

from django.db import migrations

from pgqueue.beyond_models import PARTS


class Migration(migrations.Migration):
    """The fence sequence, the rules of a job's row, what a bucket holds, the audit trigger, storage parameters."""

    dependencies = (("pgqueue", "0001_tables"),)

    operations = tuple(migrations.RunSQL([*part.create], [*part.drop]) for part in PARTS)
