package migrations_test

import (
	"fmt"
	"strings"
)

// filled is an array of one value n times.
func filled(value string, n int) string { return fmt.Sprintf("array_fill(%s, '{%d}')", value, n) }

// page500 are the arguments of a page of 500 messages.
func page500() string {
	var columns []string
	for _, value := range []string{"'r'::text", "'m'::text", "'ch_7'::text", "'p'::text", "'t'::text", "''::bytea", "'{}'::text", "''::bytea", "''::text"} {
		columns = append(columns, filled(value, 500))
	}
	return strings.Join(columns, ", ")
}

// lookups are what requests, steps, polls and deletions ask, some of it a thousand
// times a second.
func lookups() []lookup {
	const (
		streamOnce  = "ledger_events_version_once stream_id"
		inOrder     = "ledger_events_pkey txid"
		postingOnce = "ledger_postings_leg_once stream_id version"
		byNumber    = "inbox_pkey id"
		messageOnce = "inbox_message_once message_id receiver"
		firstOfKey  = "inbox_one_first_per_key receiver ordering_key"
		behind      = "inbox_behind receiver ordering_key"
		dueFirst    = "inbox_due receiver due_at"
		running     = "inbox_running receiver"
		keyOnce     = "idempotency_keys_once scope operation key"
		outboxRange = "outbox_pkey topic id"
		deadLetters = "inbox_dead_or_discarded status id"
		ownNumbers  = "pg_attribute_relid_attnum_index attrelid attnum"
	)
	return []lookup{
		{in: "ledger", words: "order by stream_id, version", api: true, args: "'{ch_7}'", ways: streamOnce},
		{in: "ledger", words: "and version = 1", args: "'ch_7'", ways: streamOnce + " version"},
		{in: "ledger", words: "group by stream_id, merchant_id", api: true, args: "'{ch_7,ch_8}'", ways: streamOnce},
		{in: "ledger", words: "where event_id = $1", api: true, args: "gen_random_uuid(), 'm7'", ways: "ledger_events_event_once event_id"},
		{in: "ledger", words: "merchant_id <= $1", api: true, args: "'m7', '700', 5, 21", ways: "ledger_events_feed merchant_id txid"},
		{in: "ledger", words: " desc\n limit $3", api: true, args: "'m1', 'ch_9', 21", ways: "ledger_events_listed merchant_id"},
		{
			in: "ledger", words: "from looked", args: "'m1', 'ch_9', 21, 5000",
			ways: "ledger_events_listed merchant_id, ledger_events_one_outcome stream_id",
		},
		{in: "ledger", words: "and order_id >= $4", api: true, args: "'m1', 'ch_9', 21, 'order-7'", ways: "ledger_events_listed_by_order merchant_id order_id"},
		{in: "ledger", words: "and type = any ($4)", api: true, args: "'m1', 'ch_9', 21, '{refund.succeeded.v1}'", ways: "ledger_events_marking_a_status merchant_id"},
		{
			in: "ledger", words: "left(account, -4)", args: "'m1'",
			ways: "account_balances_once merchant_id, " + inOrder + ", " + postingOnce,
		},
		{in: "ledger", words: "insert into account_balances", args: "'balances', 2500", ways: inOrder + ", " + postingOnce + ", " + ownNumbers},

		{in: "idempotency", words: "as asked", api: true, args: "'{m1}', '{POST /v1/charges}', '{key-7}'", ways: keyOnce},
		{in: "idempotency", words: "as asked", args: "'{m1,m1}', '{POST /v1/charges,POST /v1/charges}', '{key-7,key-8}'", ways: keyOnce},
		{
			in: "idempotency", words: "with due", args: "500",
			ways: "idempotency_keys_kept expires_at",
		},

		{in: "outbox", words: "with waiting", ways: outboxRange + ", " + outboxRange},
		{in: "outbox", words: "delete from outbox", ways: outboxRange},
		// One entry of the log's end.
		{in: "internal/restore", words: "is_original", ways: inOrder + ", " + ownNumbers},

		{in: "inbox", words: "with due as", ways: dueFirst + ", " + byNumber},
		{in: "inbox", words: "select now(),", ways: dueFirst},
		{in: "inbox", words: "with waiting", args: "'r'::text, 'ch_7'::text", ways: behind + ", " + firstOfKey + ", " + behind + ", " + byNumber},
		{in: "inbox", words: "insert into inbox_holders", ways: byNumber},
		{in: "inbox", words: "delete from inbox_holders"},
		{in: "inbox", words: "holder not in", ways: running + ", " + byNumber},
		{in: "inbox", words: "due_at > now() + $2", ways: dueFirst + ", " + byNumber},
		{in: "inbox", words: "(values ($1::text, $2::text)) as k", ways: firstOfKey + ", " + behind + ", " + byNumber},
		{in: "inbox", words: "unnest($1::text[], $2::text[]) as k", ways: firstOfKey + ", " + behind + ", " + byNumber},
		{in: "inbox", words: "unnest($1::text[], $2::text[]) as k", args: filled("'r'::text", 500) + ", " + filled("'ch_7'::text", 500), ways: firstOfKey + ", " + behind + ", " + byNumber},
		{in: "inbox", words: "(values ($1::text, $2::text, $3", ways: firstOfKey + ", " + messageOnce + ", " + byNumber},
		{in: "inbox", words: "$9::text[]) with ordinality", ways: firstOfKey + ", " + messageOnce + ", " + byNumber},
		{in: "inbox", words: "$9::text[]) with ordinality", args: page500(), ways: firstOfKey + ", " + messageOnce + ", " + byNumber},
		{in: "inbox", words: "(values ($1::bigint", args: "7, 1, 'm'", ways: byNumber},
		{in: "inbox", words: "(select * from unnest($1::bigint[], $2", args: "'{7}', '{1}', '{m}'", ways: byNumber},
		{in: "inbox", words: "(select * from unnest($1::bigint[], $2", args: filled("7", 16) + ", " + filled("1", 16) + ", " + filled("'m'::text", 16), ways: byNumber},
		{in: "inbox", words: "coalesce($9, last_error)", ways: byNumber},
		{in: "inbox", words: "finished_at < now()", args: "'1 hour', 500", ways: "inbox_finished finished_at"},
		{in: "inbox", words: "i.status in ('dead', 'discarded')", args: "'dead', 7, 100, '', '', '', '0'", ways: deadLetters + ", inbox_dead_or_discarded status, " + behind + ", " + behind + " id"},
		{in: "inbox", words: "i.payload", args: "7", ways: byNumber + ", " + behind + ", " + behind + " id"},
		{in: "inbox", words: "waits         = 0", args: "7, 'x'", ways: deadLetters + ", " + byNumber + ", " + firstOfKey},
		{in: "inbox", words: "'discarded',", args: "7, 'x'", ways: deadLetters + ", " + byNumber + ", " + firstOfKey},

		{in: "fulfillment", words: "reserved  = reserved", args: "'m7', 'sku', 1, -1, 0", ways: "stock_pkey merchant_id sku"},
		{in: "fulfillment", words: "update reservations", args: "'ch_7', 'sold'", ways: "reservations_once charge_id"},
		{in: "fulfillment", words: "s.available", args: "'{m7,m8}', '{sku,sku}'", ways: "stock_pkey merchant_id sku"},
		{in: "internal/merchants", words: "m.webhook_url,\n", args: "'{m7,m8}'", ways: "merchants_pkey merchant_id, webhook_secrets_pkey merchant_id"},

		{in: "internal/merchants", words: "with over", args: "500", ways: "webhook_secrets_to_forget ends_at"},

		{
			in: "fulfillment", words: "e.merchant_id = $1", args: "'m1', now(), null",
			ways: "ledger_events_feed merchant_id, " + messageOnce + ", " + streamOnce + ", merchants_pkey merchant_id",
		},

		// What is open or dead is counted; the plan reads no finished row.
		{
			in: "internal/telemetry", words: "payonce_inbox_messages", args: "'{r}', 100000",
			ways: dueFirst + ", inbox_due receiver, inbox_behind receiver, " + running + ", " + deadLetters + ", inbox_dead_or_discarded status, inbox_one_first_per_key receiver, " + firstOfKey,
		},
		{in: "internal/telemetry", words: "payonce_outbox_unread_messages", args: "100000, '{charges,notification}'", ways: "outbox_pkey topic, outbox_pkey topic id"},
		// A timeline reads the queue of the outbox, and of the inbox the messages of its charges.
		{
			in: "internal/audit", words: "order by i.id, e.step", args: "'{ch_7}', now()",
			ways: streamOnce + ", inbox_message_once message_id, inbox_not_of_events ordering_key, " + byNumber,
		},
		{in: "internal/audit", words: "order by o.id", args: "'{ch_7}', '{charges}'", ways: "outbox_pkey topic, " + streamOnce},
	}
}
