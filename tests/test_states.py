"""The table of legal moves against the statements that make them and the diagram that shows them."""

import re
from pathlib import Path

import pytest

from pgqueue.protocol.settling import EndingKind
from pgqueue.recovery import Facts, decide, decide_break
from pgqueue.states import FINAL, STORED, TRANSITIONS, WAITING, By, Lane, Recovery, State
from pgqueue.verbs import VERBS

ROOT = Path(__file__).parent.parent
STATEMENTS = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "pgqueue" / "sql").glob("*.sql")}
STATES = "|".join(State)
CLONING = {"clone"}
ENQUEUEING = {
    "enqueue",
    "enqueue_bare",
    "enqueue_many",
    "enqueue_once",
    "enqueue_unique",
    "enqueue_in_window",
}


def header_of(text):
    lines = []
    for line in text.splitlines():
        if not line.startswith("--"):
            break
        lines.append(line.removeprefix("--").strip())
    return "\n".join(lines)


def clause_of(name, word):
    """Return what a header says after `word:`, up to the next such word."""
    found = re.search(rf"^{word}: (.*?)(?=^\w+: |\Z)", header_of(STATEMENTS[name]), re.S | re.M)
    return found and " ".join(found[1].split())


def moves_in_header(name):
    """Read `running -> retrying; -> dead when ...` as pairs of states."""
    clause = clause_of(name, "Transition") or ""
    if "->" not in clause:
        return set()
    left, right = clause.split("->", 1)
    sources = re.findall(STATES, left)
    targets = re.findall(STATES, re.split(r"\.(?:\s|$)", right)[0])
    return {(State(source), State(target)) for source in sources for target in targets}


def moves_of(verb):
    return {(move.source, move.target) for move in TRANSITIONS if move.verb == verb}


def reachable_from(state):
    seen, edge = {state}, [state]
    while edge:
        edge = [move.target for move in TRANSITIONS if move.source in edge and move.target not in seen]
        seen.update(edge)
    return seen


@pytest.mark.parametrize("verb", sorted({move.verb for move in TRANSITIONS}))
def test_a_statements_header_tells_the_moves_of_the_table(verb):
    assert moves_in_header(verb) == moves_of(verb)


@pytest.mark.parametrize("name", sorted(STATEMENTS))
def test_a_statement_that_sets_the_state_is_a_verb_of_the_table(name):
    """Nothing else writes a job's state, in any statement."""
    writes = re.search(
        r"UPDATE pgqueue_job\b.*?\bSET\b(?:(?!\bWHERE\b|\bFROM\b).)*?\bstate\s*=", STATEMENTS[name], re.S
    )
    verbs = {move.verb for move in TRANSITIONS} | {"claim_behind", "claim_picked", "complete_first"}
    assert bool(writes) == (name in verbs)
    assert ("INSERT INTO pgqueue_job (" in STATEMENTS[name]) == (name in ENQUEUEING | CLONING)


@pytest.mark.parametrize("name", ["claim_behind", "claim_picked"])
def test_the_other_claims_make_the_claims_moves(name):
    assert moves_in_header(name) == moves_of("claim")


def claimed_by(name):
    """Return what a claim writes, and what it returns of each lease; the rest of it chooses the rows."""
    return re.search(
        r"claimed AS \(\s+(UPDATE.*?)FROM candidates.*?\)\s+(SELECT.*)ORDER BY", STATEMENTS[name], re.S
    ).groups()


def test_every_claim_grants_the_same_lease():
    writes, returns = claimed_by("claim")
    assert claimed_by("claim_behind") == (writes, returns)
    assert claimed_by("claim_picked")[0] == writes


@pytest.mark.parametrize("name", sorted(ENQUEUEING))
def test_a_job_is_born_pending(name):
    assert "none -> pending" in clause_of(name, "Transition")
    assert re.findall(rf"'({STATES})'", STATEMENTS[name]) == ["pending"]


def test_the_states_named_in_a_statement_are_those_of_its_moves():
    """A literal state in SQL is one that the verb leaves or leads to, or is looked at by name below."""
    looked_at = {"claim_picked": {"running"}}
    for verb in {move.verb for move in TRANSITIONS}:
        named = set(re.findall(rf"'({STATES})'", STATEMENTS[verb]))
        allowed = {state for move in moves_of(verb) for state in move} | looked_at.get(verb, set())
        assert named <= allowed, verb


def test_no_move_is_listed_twice():
    assert len(TRANSITIONS) == len({(move.source, move.target, move.verb) for move in TRANSITIONS})


def test_a_verb_belongs_to_one_kind_of_actor():
    verbs = {move.verb for move in TRANSITIONS}
    assert len({(move.verb, move.by) for move in TRANSITIONS}) == len(verbs)


def test_every_state_is_reached_from_pending():
    assert reachable_from(State.PENDING) == set(State)


def test_every_state_but_success_can_still_come_to_an_end_and_to_work():
    assert reachable_from(State.SUCCEEDED) == {State.SUCCEEDED}
    for state in set(State) - {State.SUCCEEDED}:
        assert State.RUNNING in reachable_from(state), state
        assert set(FINAL) <= reachable_from(state), state


def test_only_an_operator_takes_a_job_out_of_a_final_state():
    out = {(move.source, move.target, move.by) for move in TRANSITIONS if move.source in FINAL}
    assert {by for _, _, by in out} == {By.OPERATOR}
    assert {(source, target) for source, target, _ in out} == {
        (State.DEAD, State.PENDING),
        (State.CANCELLED, State.PENDING),
    }


def test_a_running_job_goes_back_to_pending_only_when_its_worker_releases_it():
    back = [move for move in TRANSITIONS if (move.source, move.target) == (State.RUNNING, State.PENDING)]
    assert [(move.verb, move.by) for move in back] == [("release", By.WORKER)]


def test_only_a_claim_leads_to_running():
    assert {move.verb for move in TRANSITIONS if move.target == State.RUNNING} == {"claim"}
    assert {move.source for move in TRANSITIONS if move.target == State.RUNNING} == set(WAITING)


def test_the_workers_verbs_are_the_endings_and_the_claim():
    assert {move.verb for move in TRANSITIONS if move.by == By.WORKER} == {*EndingKind, "settle_unknown", "claim"}


def test_an_operators_verb_is_offered_in_the_states_it_leaves():
    offered = {verb.statement or verb.name: set(verb.states) for verb in VERBS.values() if verb.kind == "job"}
    moving = {move.verb for move in TRANSITIONS if move.by == By.OPERATOR}
    assert {name: states for name, states in offered.items() if name in moving} == {
        verb: {source for source, _ in moves_of(verb)} for verb in moving
    }
    others = {"ask_to_stop", "skip_head", "ask_again", "assign", "clone", "purge"} | {
        "reschedule",
        "reprioritise",
        "move_queue",
    }
    assert {name for name in offered if name not in moving} == others


def every_fact():
    for recovery in Recovery:
        for unknown_effects in (0, 1, 2):
            for stop_requested in (False, True):
                for exhausted in (False, True):
                    for replay_safe in (False, True):
                        yield Facts(recovery, unknown_effects, stop_requested, exhausted, replay_safe)


def test_the_decision_table_makes_exactly_the_moves_of_a_takeover():
    for decided, verb in ((decide, "take_over"), (decide_break, "break_lease")):
        assert {(State.RUNNING, decided(facts)) for facts in every_fact()} == moves_of(verb)


def test_no_decision_ends_a_job_over_an_effect_that_is_unknown():
    for facts in every_fact():
        for target in (decide(facts), decide_break(facts)):
            assert facts.unknown_effects == 0 or target not in FINAL
            if facts.unknown_effects and target == State.RETRYING:
                assert facts.recovery == Recovery.IDEMPOTENT


def test_every_lane_has_statements_of_its_own():
    assert "job.lane = 0" in STATEMENTS["claim"]
    assert "job.lane = 0" in STATEMENTS["claim_behind"]
    assert "job.lane = 1" in STATEMENTS["pick_laned"]
    assert "job.lane = %(lane)s" in STATEMENTS["pick_bound"]
    assert [int(lane) for lane in STORED] == [0, 1, 2, 3]
    assert set(Lane) == {*STORED, Lane.BOUND}


def diagram():
    text = (ROOT / "docs" / "states.md").read_text(encoding="utf-8")
    block = re.search(r"```mermaid\n(.*?)```", text, re.S)[1]
    moves = re.findall(rf"^\s*({STATES}) --> ({STATES}): (.+)$", block, re.M)
    return {(source, target, verb) for source, target, verbs in moves for verb in verbs.split(", ")}


def test_the_diagram_in_the_docs_shows_the_table():
    assert diagram() == {(move.source, move.target, move.verb) for move in TRANSITIONS}


def test_the_docs_explain_every_state():
    text = (ROOT / "docs" / "states.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\w+)` \|", text, re.M) == list(State)
