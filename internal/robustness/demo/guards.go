package demo

import (
	"context"
	"fmt"
)

// Guard is a guard of docs/reference/guards.md that the guard lab can remove.
type Guard struct {
	Name string `json:"guard"`
	Kind string `json:"kind"`
	// Remove is the SQL that removes it from the migrated database.
	Remove string `json:"removed"`
	// Fault is what happens after the storm, and what the guard refuses.
	Fault string `json:"fault"`
	// Red are the checks of the audit that are violated without the guard, and no others.
	Red []string `json:"expected"`
	// Charge is what then happened to a charge.
	Charge string `json:"charge"`

	inflict func(context.Context, *scene) (string, error)
}

// Guards are the guards of the lab, in the order in which `--break all` removes them. The last
// entry removes guards that stand behind others: without them nothing is violated.
func Guards() []Guard {
	return []Guard{
		{
			"idempotency_keys_once", "primary key",
			`alter table idempotency_keys drop constraint idempotency_keys_once`,
			"10 requests with one key at the same instant",
			[]string{oneAnswer},
			"several requests made a charge of their own; one of these has the payment, and the others failed", sameKey,
		},
		{
			"idempotency_keys.key", "collation",
			`
do $$ -- a policy reads the column, so it is made anew
declare
  checks text := (select with_check from pg_policies where tablename = 'idempotency_keys' and policyname = 'request');
begin
  drop policy request on idempotency_keys;
  alter table idempotency_keys alter column key type text collate "default";
  execute 'create policy request on idempotency_keys for insert to payonce_api with check (' || checks || ')';
end
$$`,
			"after a restart the server sorts digits as numbers, and requests are retried",
			[]string{oneAnswer},
			"the index searched in the wrong place, and retries made second charges, which failed, since the first ones have the payments", newCollation,
		},
		{
			"held_orders_one_charge", "primary key",
			`alter table held_orders drop constraint held_orders_one_charge`,
			"8 requests with keys of their own for one order at the same instant",
			[]string{"one charge per order, where that is wanted"},
			"several charges of its order were captured", rivalKeys,
		},
		{
			"ledger_events_version_once", "unique, and those behind it",
			`
alter table ledger_events drop constraint ledger_events_version_once cascade;
alter table ledger_postings drop constraint ledger_postings_leg_once;
create index on ledger_events (stream_id, version, position); -- all readers see the same order
drop trigger ledger_events_of_the_api on ledger_events;
alter policy request on ledger_postings with check (true) -- it finds two events at a version`,
			"8 refunds of 70% of a charge at the same instant",
			[]string{legal, postings, "no accepted charge or refund is lost", "refunds never exceed the capture"},
			"several refunds were accepted at one version, together more than was captured; one is paid, the others are void", rivalRefunds,
		},
		{
			"ledger_events_previous_exists", "foreign key",
			`alter table ledger_events drop constraint ledger_events_previous_exists`,
			"a failover loses an event while a worker decides the next one",
			[]string{legal},
			"it was captured, and has no record of the payment intent; its webhook waits for ever", lostCommit,
		},
		{
			"ledger_events_append_only", "trigger",
			`drop trigger ledger_events_append_only on ledger_events`,
			"an update by hand doubles the amount of a request",
			[]string{legal, postings, "an answer names what it accepted", "provider: a succeeded charge was captured in full"},
			"it shows twice the amount that was captured", updateByHand,
		},
		{
			"inbox_done_by_holder", "check",
			`alter table inbox drop constraint inbox_done_by_holder`,
			"a worker is paused beyond its lease, and continues when another one has finished",
			[]string{"a finished message was finished by its holder"},
			"a worker without the lease ended its message", pausedHolder,
		},
		{
			"stock_available_not_negative", "check",
			`alter table stock drop constraint stock_available_not_negative`,
			"10 charges take the last piece at the same instant",
			[]string{supplied},
			"several charges were captured for one piece", lastPiece,
		},
		{
			"stock_adds_up", "check",
			`alter table stock drop constraint stock_adds_up`,
			"an update by hand adds 5 pieces to what is available",
			[]string{supplied},
			"later charges could buy 5 pieces that do not exist", restockByHand,
		},
		{
			"reservations_known_sku", "foreign key",
			`alter table reservations drop constraint reservations_known_sku`,
			"an article is deleted while a charge reserves it",
			[]string{supplied},
			"it was captured for an article that does not exist", deletedArticle,
		},
		{
			"second line", "several",
			`
alter table ledger_events drop constraint ledger_events_event_once;
alter table ledger_postings drop constraint ledger_postings_leg_once;
alter table reservations drop constraint reservations_once;
alter table stock drop constraint stock_reserved_not_negative;
drop index ledger_events_one_beginning, ledger_events_one_capture, ledger_events_one_outcome,
           ledger_events_one_capture_per_reference, ledger_events_one_refund_outcome,
           ledger_events_one_refund_reversal, ledger_events_one_refund_per_reference, ledger_events_one_dispute,
           inbox_one_first_per_key`,
			"all faults above", nil,
			"nothing: another guard refused the same fault", allFaults,
		},
	}
}

// The checks of the audit that several guards have.
const (
	oneAnswer = "one stored answer per key"
	legal     = "streams are legal"
	supplied  = "stock is what was supplied, and what charges hold"
	postings  = "postings are what the events cause"
)

// allFaults inflicts the faults of all guards in turn.
func allFaults(ctx context.Context, s *scene) (shown string, err error) {
	for _, g := range Guards() {
		if g.Kind == "several" {
			continue
		}
		if shown, err = g.inflict(ctx, s); err != nil {
			return "", fmt.Errorf("%s: %w", g.Fault, err)
		}
	}
	return shown, nil
}
