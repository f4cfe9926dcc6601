package migrations_test

import (
	"fmt"
	"strings"
)

// incoming are the arguments of a page of so many messages.
func incoming(n int) string {
	columns := []string{"'r'", "'h'", "'30 s'", "false"}
	for _, value := range []string{"'m'::text", "'ch_7'::text", "'p'::text", "'t'::text", "''::bytea", "'{}'::text", "''::bytea", "true", "false"} {
		columns = append(columns, filled(value, n))
	}
	return strings.Join(columns, ", ")
}

// filled is an array of one value n times.
func filled(value string, n int) string { return fmt.Sprintf("array_fill(%s, '{%d}')", value, n) }

// lookups are what requests, steps, polls and sweeps ask, some of it a thousand
// times a second.
func lookups() []lookup {
	along := []string{"ledger/projection.go func alongIndexes"}
	back := append(along, "ledger/charge_list.go func walkingBack")
	subscriber := []string{"outbox/subscriber.go func SessionSettings"}
	claim := []string{"inbox/operate.go func walking"}
	store := []string{"inbox/store.go const walkIndexes"}
	outboxSweep := []string{"outbox/sweep.go const walk"}
	streams, versions := make([]string, 250), make([]string, 250)
	for i := range streams {
		streams[i], versions[i] = "'ch_1'", "1"
	}
	page := "array[" + strings.Join(streams, ", ") + "]"
	pageVersions := "array[" + strings.Join(versions, ", ") + "]"
	const (
		streamOnce  = "ledger_events_version_once stream_id"
		inOrder     = "ledger_events_in_order txid"
		postingOnce = "ledger_postings_leg_once stream_id version"
		byNumber    = "inbox_pkey id"
		messageOnce = "inbox_message_once message_id receiver"
		openByKey   = "inbox_open_by_key receiver ordering_key"
		parkedByKey = "inbox_parked_by_key receiver ordering_key"
		keyOnce     = "idempotency_keys_once scope operation key"
		outboxRange = "outbox_pkey topic transaction_id"
		setAside    = "inbox_set_aside status id"
		ownNumbers  = "pg_attribute_relid_attnum_index attrelid attnum"
	)
	return []lookup{
		{file: "ledger/stream.go", words: "order by version", args: "'ch_7'", ways: streamOnce},
		{file: "ledger/stream.go", words: "any($1)", args: "'{ch_7,ch_8}'", ways: streamOnce},
		{file: "ledger/charge_list.go", words: "occurred_at", args: "'ch_7', 'm7'", settings: along, ways: streamOnce + " version merchant_id"},
		{
			file: "ledger/charge_list.go", words: "and (created_at, charge_id) < ($2, $3)", args: "'m1', 'infinity', '', 10",
			settings: back, ways: "charge_list_by_time generation merchant_id created_at",
		},
		{
			file: "ledger/charge_list.go", words: "and status >= $5", args: "'m1', 'infinity', '', 10, 'failed'",
			settings: back, ways: "charge_list_by_status generation merchant_id status",
		},
		{
			file: "ledger/charge_list.go", words: "and order_id >= $5", args: "'m1', 'infinity', '', 10, 'order-7', ''",
			settings: back, ways: "charge_list_by_order generation merchant_id order_id",
		},
		{
			file: "ledger/balances.go", words: "from legs", args: "'m1'",
			settings: along, ways: "account_balances_once generation merchant_id, " + inOrder + ", " + postingOnce,
		},
		{file: "ledger/projection.go", words: "as waiting", settings: along, ways: inOrder + ", " + ownNumbers},
		{file: "ledger/projection.go", words: "update projections", args: "1, '9', 9, 9, 9"},
		{
			file: "ledger/projection_page.go", words: "limit $5", args: "'700', 5, '99999999', 99999999, 250",
			settings: along, ways: inOrder,
		},
		{file: "ledger/projection_page.go", words: "any($1)", args: page + ", '999999', 99", settings: along, ways: streamOnce},
		{file: "ledger/projection_page.go", words: "with postings", args: page + ", " + pageVersions, settings: along, ways: postingOnce},
		{
			file: "ledger/rebuild.go", words: "delete from charge_list", args: "1000", settings: along,
			ways: "charge_list_once generation, charge_list_by_time generation, charge_list_by_order generation, charge_list_by_status generation",
		},
		{file: "ledger/rebuild.go", words: "delete from account_balances", args: "1000", settings: along, ways: "account_balances_once generation"},

		{file: "idempotency/look.go", words: "as asked", args: "'m1', '{POST /v1/charges}', '{key-7}'", ways: keyOnce},
		{file: "idempotency/look.go", words: "as asked", args: "'m1', '{POST /v1/charges,POST /v1/charges}', '{key-7,key-8}'", ways: keyOnce},
		{
			file: "idempotency/list.go", words: "recursive operations", args: "'m1', 'key-7'",
			ways: keyOnce + ", idempotency_keys_once scope, idempotency_keys_once scope operation",
		},
		{
			file: "idempotency/sweep.go", words: "with due", args: "500",
			settings: []string{"idempotency/sweep.go postgres.Settings{\n"}, ways: "idempotency_keys_kept expires_at",
		},

		{file: "outbox/subscriber.go", words: "with position", args: "'charges', 'g', 500, 1048576", settings: subscriber, ways: outboxRange + ", " + ownNumbers},
		{file: "outbox/subscriber.go", words: "update outbox_offsets", args: "'charges', 'g', '9', 9", settings: subscriber},
		{file: "outbox/sweep.go", words: "with passed", args: "'1 hour', 500", settings: outboxSweep, ways: outboxRange + ", " + ownNumbers},
		// One entry of the log's end.
		{file: "internal/restore/repair.go", words: "as newest", ways: "ledger_events_in_order, " + ownNumbers},

		{
			file: "inbox/store.go", words: "for no key update", args: "'r', " + filled("'m'::text", 1) + ", " + filled("'ch_7'::text", 1),
			settings: store, ways: messageOnce + ", " + openByKey + ", " + byNumber,
		},
		{
			file: "inbox/store.go", words: "with incoming", args: incoming(1),
			settings: store, ways: messageOnce + ", " + openByKey + ", " + parkedByKey,
		},
		{
			file: "inbox/store.go", words: "pg_current_xact_id()", args: "'r', " + filled("'m'::text", 1) + ", " + filled("'ch_7'::text", 1),
			settings: store, ways: messageOnce + ", " + openByKey + ", " + byNumber,
		},
		{
			file: "inbox/store.go", words: "for no key update", args: "'r', " + filled("'m'::text", 500) + ", " + filled("'ch_7'::text", 500),
			settings: store, ways: messageOnce + ", " + openByKey + ", " + byNumber,
		},
		{
			file: "inbox/store.go", words: "with incoming", args: incoming(500),
			settings: store, ways: messageOnce + ", " + openByKey + ", " + parkedByKey,
		},
		{
			file: "inbox/store.go", words: "pg_current_xact_id()", args: "'r', " + filled("'m'::text", 500) + ", " + filled("'ch_7'::text", 500),
			settings: store, ways: messageOnce + ", " + openByKey + ", " + byNumber,
		},
		{
			file: "inbox/claim.go", words: "i.due_at >= $9", args: "'r', 10, 'h', '30 s', false, '{}', '1 s', '10 s', '-infinity', 9, '{a,b}', '{0,7}'",
			settings: store, ways: "inbox_due receiver due_at, inbox_one_running_per_key receiver ordering_key, " + openByKey + " id, " + parkedByKey + " id, " + byNumber,
		},
		{
			file: "inbox/claim.go", words: "with suspects", args: "'r', 10, 'h', '30 s', '{}', '1 s', '10 s', 32, 20",
			settings: store, ways: "inbox_suspects receiver, " + byNumber,
		},
		{
			file: "inbox/claim.go", words: "p.gone", args: "'r', 10, 'h', '30 s', false, '{a,b}', '{0,7}', '{3,4}'",
			settings: store, ways: "inbox_held_back receiver partition_key id, inbox_one_running_per_key receiver ordering_key, " + openByKey + " id, " + parkedByKey + " id, " + byNumber,
		},
		{file: "inbox/claim.go", words: "recursive held", args: "'r'", settings: store, ways: "inbox_held_back receiver, inbox_held_back receiver partition_key"},
		{file: "inbox/claim.go", words: "select due_at - now()", args: "'r', '-infinity', '100 ms'", settings: store, ways: "inbox_due receiver due_at"},
		{file: "inbox/lease.go", words: "from held", args: "'{1,2,3}', '{1,1,1}', '30 s'", ways: byNumber},
		{file: "inbox/finish.go", words: "with ended", args: "7, 1", ways: byNumber},
		{file: "inbox/finish.go", words: "with ending", args: "7, 1", ways: byNumber},
		{file: "inbox/finish.go", words: "with ending", args: "7, 1", more: ", (8, 1)", ways: byNumber},
		{file: "inbox/finish.go", words: "attempts   = attempts - deaths,", args: "7, 1, 9, '1 s', '10 s', 'x', 20", ways: byNumber},
		{file: "inbox/finish.go", words: "waits + 1", args: "7, 1, '1 s', '1 s', '10 s', '1 s', 'x', false, 20, false", ways: byNumber},
		{file: "inbox/finish.go", words: "from inbox newer", args: "7, 1, now()", ways: byNumber + ", " + openByKey},
		{file: "inbox/finish.go", words: "set status     = 'dead'", args: "7, 1, 'x'", ways: byNumber},
		{file: "inbox/finish.go", words: "attempts - deaths - 1", args: "7, 1", ways: byNumber},
		{
			// Of the outbox one entry for each topic.
			file: "inbox/retention.go", words: "inbox_window from retention", args: "'1 hour', 500",
			settings: store, ways: "inbox_finished finished_at received_in, outbox_pkey, outbox_pkey topic, " + ownNumbers,
		},
		{file: "inbox/retention.go", words: "inbox_quarantine", args: "'1 hour', 500", settings: store, ways: "inbox_quarantine_received received_at"},
		{file: "inbox/operate.go", words: "i.status <= $1", args: "'dead', 7, 100", settings: claim, ways: "inbox_set_aside status, " + openByKey},
		{file: "inbox/operate.go", words: "i.payload", args: "7", settings: claim, ways: byNumber + ", " + openByKey},
		{file: "inbox/operate.go", words: "waits         = 0", args: "7, 'x'", settings: claim, ways: setAside + ", " + byNumber},
		{file: "inbox/operate.go", words: "set status      = 'discarded'", args: "7, 'x'", settings: claim, ways: setAside + ", " + byNumber},

		{file: "fulfillment/inventory.go", words: "reserved  = reserved", args: "'m7', 'sku', 1", ways: "stock_pkey merchant_id sku"},
		{file: "fulfillment/inventory.go", words: "update reservations", args: "'ch_7', 'sold'", ways: "reservations_once charge_id"},
		{file: "fulfillment/reader.go", words: "s.available", args: "'{m7,m8}', '{sku,sku}'", ways: "stock_pkey merchant_id sku"},
		{file: "fulfillment/resend.go", words: "update webhook_resends", args: "gen_random_uuid()", ways: "webhook_resends_pkey resend_id"},
		{file: "internal/merchants/webhooks.go", words: "m.webhook_url,\n", args: "'{m7,m8}'", ways: "merchants_pkey merchant_id, webhook_secrets_pkey merchant_id"},

		{file: "internal/merchants/webhooks.go", words: "with over", args: "500", ways: "webhook_secrets_to_forget ends_at"},

		// What is open or parked is counted, and nothing that is done is passed over.
		{
			file: "internal/telemetry/figures.go", words: "from inbox open", args: "'{r}', 100000",
			ways: "inbox_open_by_key receiver, inbox_due receiver, inbox_parked_by_key receiver",
		},
		{file: "internal/telemetry/figures.go", words: "o.consumer_group", args: "100000", ways: outboxRange + ", outbox_offsets_pkey consumer_group"},
	}
}
