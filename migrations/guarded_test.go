package migrations_test

import (
	"fmt"
	"slices"
	"strings"
)

// The rows below are written as a careless program would.

func event(id, stream string, version int, name, data string) string {
	return fmt.Sprintf(`
insert into ledger_events
       (event_id, stream_id, version, type, schema_version, merchant_id, data, metadata, occurred_at)
values (md5('%s')::uuid, '%s', %d, '%s', 1, 'acme', '%s', '{}', now())`, id, stream, version, name, data)
}

func posting(leg int, debit, credit string, amount int) string {
	return fmt.Sprintf(`
insert into ledger_postings
values ('ch_1', 1, %d, 'acme', '%s', '%s', %d, 'EUR')`, leg, debit, credit, amount)
}

func message(id, metadata string) string {
	return fmt.Sprintf(`insert into outbox (topic, message_id, payload, metadata) values ('t', '%s', '', '%s')`, id, metadata)
}

func received(id, key, status string) string {
	return fmt.Sprintf(`
insert into inbox
       (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, status)
values ('r', '%s', '%s', 't', '', '{}', '', '%s')`, id, key, status)
}

func answer(key string, status int) string {
	return fmt.Sprintf(`
insert into idempotency_keys
       (scope, operation, key, fingerprint, status_code, content_type, body, expires_at)
values ('acme', 'POST /v1/charges', '%s', '', %d, '', '', now())`, key, status)
}

func merchant(id string) string {
	return fmt.Sprintf(`insert into merchants (merchant_id) values ('%s')`, id)
}

func stock(merchant string, supplied, available, reserved int) string {
	return fmt.Sprintf(`
insert into stock
       (merchant_id, sku, supplied, available, reserved)
values ('%s', 'mug', %d, %d, %d)`, merchant, supplied, available, reserved)
}

func reservation(sku string, quantity int, status string) string {
	return fmt.Sprintf(`insert into reservations values ('ch_1', 'g_s', '%s', %d, '%s')`, sku, quantity, status)
}

func merchantGuards() []guard {
	key := func(hash, merchant string) string {
		return fmt.Sprintf(`insert into api_keys (key_hash, prefix, merchant_id, scopes) values (%s, 'sk', '%s', '{admin}')`, hash, merchant)
	}
	scoped := func(scopes, expires string) string {
		return fmt.Sprintf(`
insert into api_keys
       (key_hash, prefix, merchant_id, scopes, expires_at)
values (sha256('k'), 'sk', 'g_5', '%s', clock_timestamp() + interval '%s')`, scopes, expires)
	}
	return []guard{
		{"merchants_pkey", "a merchant registers once", []string{merchant("g_1")}, merchant("g_1")},
		{"merchants_merchant_id_check", "a merchant's id is a word", nil, merchant("Acme Ltd.")},
		{"merchants_fee_basis_points_check", "a fee is not above all of it", nil, `insert into merchants (merchant_id, fee_basis_points) values ('g_1', 10001)`},
		{"merchants_fee_basis_points_check", "a fee is not below nothing", nil, `insert into merchants (merchant_id, fee_basis_points) values ('g_1', -1)`},
		{"merchants_fee_fixed_check", "fixed fees are by currency", nil, `insert into merchants (merchant_id, fee_fixed) values ('g_1', '[30]')`},
		{"api_keys_pkey", "a key opens one account", []string{merchant("g_2"), merchant("g_3"), key("sha256('k')", "g_2")}, key("sha256('k')", "g_3")},
		{"api_keys_key_hash_check", "a raw key is not kept", []string{merchant("g_4")}, key("'sk_live_raw'", "g_4")},
		{"api_keys_merchant_id_fkey", "a key has a merchant", nil, key("sha256('k')", "nobody")},
		{"api_keys_known_scopes", "a key is for something", []string{merchant("g_5")}, scoped("{}", "1 day")},
		{"api_keys_known_scopes", "for nothing unheard of", []string{merchant("g_5")}, scoped("{admin,charges:delete}", "1 day")},
		{"api_keys_known_scopes", "and for nothing unsaid", []string{merchant("g_5")}, scoped("{admin,null}", "1 day")},
		{"api_keys_expire_after_their_birth", "a key is not born expired", []string{merchant("g_5")}, scoped("{admin}", "-1 second")},
	}
}

func ledgerGuards() []guard {
	const taken = `{"provider":"stripe","payment_intent":"pi_1"}`
	eur := func(leg, amount int) string { return posting(leg, "a:EUR", "b:EUR", amount) }
	return []guard{
		{
			"ledger_events_event_once", "an event happens once, whatever its version",
			[]string{event("e1", "ch_1", 1, "a", "{}")},
			event("e1", "ch_1", 2, "a", "{}"),
		},
		{
			"ledger_events_version_once", "a version of a stream has one event",
			[]string{event("e1", "ch_1", 1, "a", "{}"), event("e2", "ch_2", 1, "a", "{}")},
			event("e3", "ch_1", 1, "b", "{}"),
		},
		{
			"ledger_events_one_beginning", "a stream has one beginning, whoever begins it",
			[]string{event("e1", "ch_1", 1, "a", "{}")},
			strings.Replace(event("e2", "ch_1", 1, "b", "{}"), "'acme'", "'globex'", 1),
		},
		{
			"ledger_events_previous_exists", "a stream does not begin in its middle", nil,
			event("e1", "ch_1", 2, "a", "{}"),
		},
		{
			"ledger_events_previous_exists", "a stream has no gap",
			[]string{event("e1", "ch_1", 1, "a", "{}"), event("e2", "ch_1", 2, "b", "{}")},
			event("e4", "ch_1", 4, "d", "{}"),
		},
		{
			"ledger_events_previous_exists", "an event does not follow another stream's",
			[]string{event("e1", "ch_1", 1, "a", "{}"), event("e2", "ch_2", 1, "a", "{}"), event("e3", "ch_2", 2, "b", "{}")},
			event("e4", "ch_1", 3, "c", "{}"),
		},
		{
			"ledger_events_previous_exists", "an event does not follow another merchant's",
			[]string{event("e1", "ch_1", 1, "a", "{}")},
			strings.Replace(event("e2", "ch_1", 2, "b", "{}"), "'acme'", "'globex'", 1),
		},
		{
			"ledger_events_previous_exists", "also at a version that the stream has",
			[]string{event("e1", "ch_1", 1, "a", "{}"), event("e2", "ch_1", 2, "b", "{}")},
			strings.Replace(event("e3", "ch_1", 2, "c", "{}"), "'acme'", "'globex'", 1),
		},
		{
			"ledger_events_one_capture", "a charge is captured once",
			[]string{event("e1", "ch_1", 1, "payment.captured.v1", taken)},
			event("e2", "ch_1", 2, "payment.captured.v1", `{"provider":"stripe","payment_intent":"pi_2"}`),
		},
		{
			"ledger_events_one_capture", "also by a later version of the event",
			[]string{event("e1", "ch_1", 1, "payment.captured.v1", taken)},
			event("e2", "ch_1", 2, "payment.captured.v2", `{"provider":"stripe","payment_intent":"pi_2"}`),
		},
		{
			"ledger_events_one_outcome", "a charge succeeds once",
			[]string{event("e1", "ch_1", 1, "charge.succeeded.v1", "{}")},
			event("e2", "ch_1", 2, "charge.succeeded.v1", "{}"),
		},
		{
			"ledger_events_one_outcome", "a charge that succeeded does not fail",
			[]string{event("e1", "ch_1", 1, "charge.succeeded.v1", "{}"), event("e2", "ch_2", 1, "charge.failed.v1", "{}")},
			event("e3", "ch_1", 2, "charge.failed.v1", "{}"),
		},
		{
			"ledger_events_one_outcome", "a charge that failed does not succeed",
			[]string{event("e1", "ch_1", 1, "charge.failed.v1", "{}")},
			event("e2", "ch_1", 2, "charge.succeeded.v2", "{}"),
		},
		{
			"ledger_events_one_capture_per_reference", "one payment intent pays for one charge",
			[]string{event("e1", "ch_1", 1, "payment.captured.v1", taken), event("e2", "ch_2", 1, "payment.started.v1", taken)},
			event("e3", "ch_2", 2, "payment.captured.v1", taken),
		},
		{
			"ledger_events_one_refund_outcome", "a refund that succeeded does not fail",
			[]string{
				event("e1", "ch_1", 1, "refund.succeeded.v1", `{"refund_id":"re_1"}`), event("e2", "ch_1", 2, "refund.failed.v1", `{"refund_id":"re_2"}`),
				event("e3", "ch_2", 1, "refund.failed.v1", `{"refund_id":"re_1"}`),
			},
			event("e4", "ch_1", 3, "refund.failed.v1", `{"refund_id":"re_1"}`),
		},
		{
			"ledger_events_one_refund_reversal", "a refund is reversed once",
			[]string{event("e1", "ch_1", 1, "refund.succeeded.v1", `{"refund_id":"re_1"}`), event("e2", "ch_1", 2, "refund.reversed.v1", `{"refund_id":"re_1"}`)},
			event("e3", "ch_1", 3, "refund.reversed.v1", `{"refund_id":"re_1"}`),
		},
		{
			"ledger_events_one_refund_per_reference", "one refund of the provider's is booked once",
			[]string{event("e1", "ch_1", 1, "refund.succeeded.v1", `{"refund_id":"re_1","provider":"stripe","provider_refund":"re_9"}`)},
			event("e2", "ch_1", 2, "refund.succeeded.v1", `{"refund_id":"re_2","provider":"stripe","provider_refund":"re_9"}`),
		},
		{
			"ledger_events_pkey", "a position is taken once",
			[]string{"insert into ledger_events overriding system value values (-1, default, md5('e1')::uuid, 'ch_1', 1, default, 'a', 1, 'm', '{}', '{}', now())"},
			"insert into ledger_events overriding system value values (-1, default, md5('e2')::uuid, 'ch_1', 2, default, 'a', 1, 'm', '{}', '{}', now())",
		},
		{"ledger_events_version_check", "versions count from one", nil, event("e1", "ch_1", 0, "a", "{}")},
		{
			"ledger_events_schema_version_check", "schema versions count from one", nil,
			"insert into ledger_events values (default, default, md5('e1')::uuid, 'ch_1', 1, default, 'a', 0, 'm', '{}', '{}', now())",
		},
		{"ledger_events_data_check", "an event is an object", nil, event("e1", "ch_1", 1, "a", "[]")},
		{
			"ledger_events_metadata_check", "the cause of an event is an object", nil,
			"insert into ledger_events values (default, default, md5('e1')::uuid, 'ch_1', 1, default, 'a', 1, 'm', '{}', 'null', now())",
		},
		{"ledger_postings_leg_once", "a leg is posted once", []string{eur(1, 5), eur(2, 5)}, eur(1, 5)},
		{"ledger_postings_leg_check", "legs count from one", nil, eur(0, 5)},
		{"ledger_postings_amount_check", "nothing is not posted", nil, eur(1, 0)},
		{"ledger_postings_amount_check", "a posting does not run backward", nil, eur(1, -5)},
		{"ledger_postings_two_accounts", "an account gives nothing to itself", nil, posting(1, "a:EUR", "a:EUR", 5)},
		{"ledger_postings_one_currency", "the debit is in the posting's currency", nil, posting(1, "a:USD", "b:EUR", 5)},
		{"ledger_postings_one_currency", "the credit is in the posting's currency", nil, posting(1, "a:EUR", "b:USD", 5)},
	}
}

func outboxGuards() []guard {
	placed := `insert into outbox (topic, transaction_id, "offset", message_id, payload, metadata) overriding system value values ('t', '7', 7, '%s', '', '{}')`
	return []guard{
		{"outbox_message_id_check", "a message has an id", nil, message("", "{}")},
		{"outbox_message_id_check", "an id has at most 36 characters", []string{message("012345678901234567890123456789012345", "{}")}, message("0123456789012345678901234567890123456", "{}")},
		{"outbox_metadata_check", "metadata is an object", nil, message("m", `"x"`)},
		{"outbox_pkey", "a place in the order is taken once", []string{fmt.Sprintf(placed, "m1")}, fmt.Sprintf(placed, "m2")},
		{
			"outbox_offsets_pkey", "a group has one offset in a topic",
			[]string{`insert into outbox_offsets values ('t', 'g', '0', 0), ('t', 'h', '0', 0)`},
			`insert into outbox_offsets values ('t', 'g', '1', 1)`,
		},
	}
}

func inboxGuards() []guard {
	const quarantined = `insert into inbox_quarantine (receiver, message_id, payload, metadata, payload_hash) values ('r', 'm', '', '{}', '%s')`
	return []guard{
		{"inbox_message_once", "a message is received once", []string{received("m1", "k", "pending")}, received("m1", "k", "pending")},
		{"inbox_message_once", "also when it is done", []string{received("m1", "k", "pending"), `update inbox set status = 'done', done_fence = 0 where message_id = 'm1'`}, received("m1", "l", "pending")},
		{"inbox_one_running_per_key", "one message of a key runs", []string{received("m1", "k", "running"), received("m2", "k", "pending"), received("m3", "l", "running")}, `update inbox set status = 'running' where message_id = 'm2'`},
		{"inbox_done_by_holder", "a holder that was taken over does not finish", []string{received("m1", "k", "running"), `update inbox set fence = 2 where message_id = 'm1'`}, `update inbox set status = 'done', done_fence = 1 where message_id = 'm1'`},
		{"inbox_done_by_holder", "what is finished is not claimed again", []string{received("m1", "k", "running"), `update inbox set status = 'done', done_fence = 0 where message_id = 'm1'`}, `update inbox set status = 'running', fence = fence + 1 where message_id = 'm1'`},
		{"inbox_done_has_fence", "nobody finishes without a fence", []string{received("m1", "k", "running")}, `update inbox set status = 'done' where message_id = 'm1'`},
		{"inbox_held_back_is_pending", "only a pending message is held back", []string{received("m1", "k", "running")}, `update inbox set due_at = null where message_id = 'm1'`},
		{"inbox_status_check", "a message is in a known state", nil, received("m1", "k", "lost")},
		{"inbox_discarded_by_somebody", "nobody discards without a name", nil, received("m1", "k", "discarded")},
		{"inbox_decided_by_somebody", "a name is not empty", []string{received("m1", "k", "dead")}, `update inbox set decided_by = '', decided_at = now()`},
		{"inbox_decided_by_somebody", "a decision has its time", []string{received("m1", "k", "dead")}, `update inbox set decided_by = 'ada'`},
		{"inbox_decided_by_somebody", "a time has its decision", []string{received("m1", "k", "dead")}, `update inbox set decided_at = now()`},
		{
			"inbox_pkey", "a row of the inbox has its number alone",
			[]string{`insert into inbox (id, receiver, message_id, ordering_key, type, payload, metadata, payload_hash) overriding system value values (-1, 'r', 'm1', 'k', 't', '', '{}', '')`},
			`insert into inbox (id, receiver, message_id, ordering_key, type, payload, metadata, payload_hash) overriding system value values (-1, 'r', 'm2', 'k', 't', '', '{}', '')`,
		},
		{"inbox_quarantine_once", "the same stranger is kept once", []string{fmt.Sprintf(quarantined, "a"), fmt.Sprintf(quarantined, "b")}, fmt.Sprintf(quarantined, "a")},
		{
			"inbox_quarantine_pkey", "a row of the quarantine has its number alone",
			[]string{`insert into inbox_quarantine overriding system value values (-1, 'r', 'm1', '', '{}', 'a')`},
			`insert into inbox_quarantine overriding system value values (-1, 'r', 'm2', '', '{}', 'a')`,
		},
	}
}

func keyGuards() []guard {
	return []guard{
		{"idempotency_keys_once", "a key has one answer", []string{answer("k", 202), answer("l", 202)}, answer("k", 202)},
		{"idempotency_keys_once", "also another one", []string{answer("k", 202)}, answer("k", 404)},
		{"idempotency_keys_status_code_check", "what the server got wrong is no answer", []string{answer("k", 499)}, answer("l", 500)},
		{"idempotency_keys_status_code_check", "nor is what only informs", nil, answer("k", 103)},
		{"idempotency_keys_kept_or_swept", "an answer keeps its type", []string{answer("k", 202)}, `update idempotency_keys set content_type = null`},
		{"idempotency_keys_kept_or_swept", "a type goes with its answer", []string{answer("k", 202)}, `update idempotency_keys set body = null`},
		{"idempotency_keys_kept_or_swept", "and so does the request", []string{answer("k", 202)}, `update idempotency_keys set body = null, content_type = null, request = '{}'`},
	}
}

func stockGuards() []guard {
	kept := []string{merchant("g_s"), stock("g_s", 3, 3, 0)}
	held := slices.Concat(kept, []string{reservation("mug", 2, "open")})
	return []guard{
		{"stock_pkey", "an article is kept once", kept, stock("g_s", 5, 5, 0)},
		{"stock_merchant_id_fkey", "stock has a merchant", nil, stock("nobody", 3, 3, 0)},
		{"stock_available_not_negative", "nothing is reserved that is not there", kept, `update stock set available = available - 4, reserved = reserved + 4 where merchant_id = 'g_s'`},
		{"stock_reserved_not_negative", "nothing is released that was not held", kept, `update stock set available = available + 1, reserved = reserved - 1 where merchant_id = 'g_s'`},
		{"stock_adds_up", "nothing is made up", kept, `update stock set available = available + 1 where merchant_id = 'g_s'`},
		{"stock_adds_up", "nothing is lost", kept, `update stock set available = available - 1 where merchant_id = 'g_s'`},
		{"reservations_once", "a charge holds an article once", held, reservation("mug", 1, "open")},
		{"reservations_known_sku", "nothing is held of what nobody keeps", kept, reservation("plate", 1, "open")},
		{"reservations_quantity_check", "nothing is not held", kept, reservation("mug", 0, "open")},
		{"reservations_quantity_check", "less than nothing is not held", kept, reservation("mug", -1, "open")},
		{"reservations_status_check", "a reservation is in a known state", kept, reservation("mug", 1, "lost")},
	}
}

func cacheGuards() []guard {
	return []guard{
		{"cache_secret_pkey", "there is one secret", nil, `insert into cache_secret (secret) values (sha256('s'))`},
		{"cache_secret_only_row_check", "nor is there another beside it", nil, `insert into cache_secret values (false, sha256('s'))`},
		{"cache_secret_secret_check", "a secret has 256 bits", []string{`update cache_secret set secret = sha256('s')`}, `update cache_secret set secret = 'short'`},
	}
}
