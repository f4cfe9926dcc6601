package demo

// Guard is a guard of docs/reference/guards.md that the guard lab can remove.
type Guard struct {
	Name string `json:"guard"`
	Kind string `json:"kind"`
	// Remove is the SQL that removes it from the migrated database.
	Remove string `json:"removed"`
	// Fault is what happens, and what the guard refuses.
	Fault string `json:"fault"`
	// Red are the checks of the audit that are violated without the guard, and no others.
	Red []string `json:"expected"`
	// Charge is what then happened to a charge.
	Charge string `json:"charge"`

	inflict fault
}

// The checks of the audit that several guards have.
const (
	legal    = "streams are legal"
	supplied = "stock is what was supplied, and what charges hold"
	postings = "postings are what the events cause"
)

// Guards are the guards of the lab, in the order in which `--break all` removes them. The last
// entry removes guards that stand behind others: without them nothing is violated.
func Guards() []Guard {
	return []Guard{
		{
			"idempotency_keys_once", "primary key",
			`alter table idempotency_keys drop constraint idempotency_keys_once`,
			"10 requests with one key at the same instant",
			[]string{"one stored answer per key"},
			"several requests made a charge of their own; one of these has the payment, and the others failed", sameKey,
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
			"an insert by hand skips a version, as a failover does that loses an event",
			[]string{legal},
			"its stream has a gap: what was decided there is lost",
			byHand("lab-gap", "", `
insert into ledger_events (event_id, stream_id, version, type, schema_version, merchant_id, data, metadata, occurred_at)
select gen_random_uuid(), stream_id, version + 2, 'payment.attempt_failed.v1', 1, merchant_id, '{}', metadata, occurred_at
  from ledger_events
 where stream_id = '$charge'
 order by version desc
 limit 1`),
		},
		{
			"ledger_events_append_only", "trigger",
			`drop trigger ledger_events_append_only on ledger_events`,
			"an update by hand doubles the amount of a request",
			[]string{legal, postings, "an answer names what it accepted", "provider: a succeeded charge was captured in full"},
			"it shows twice the amount that was captured",
			byHand("lab-amount", "", `update ledger_events set data = jsonb_set(data, '{amount}', '2000') where stream_id = '$charge' and version = 1`),
		},
		{
			"inbox_done_by_holder", "check",
			`alter table inbox drop constraint inbox_done_by_holder`,
			"an update by hand ends a message under a fence that another holder has taken",
			[]string{"a finished message was finished by its holder"},
			"a worker without the lease ended its message",
			byHand("lab-fence", "", `update inbox set fence = fence + 1 where ordering_key = '$charge' and receiver = 'fulfillment'`),
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
			"later charges could buy 5 pieces that do not exist",
			byHand("lab-restock", "mug", `update stock set available = available + 5 where sku = 'mug'`),
		},
		{
			"reservations_known_sku", "foreign key",
			`alter table reservations drop constraint reservations_known_sku`,
			"an article is deleted by hand that a charge has reserved",
			[]string{supplied},
			"it was captured for an article that does not exist",
			byHand("lab-gone", "gone", `delete from stock where sku = 'gone'`),
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
