package migrations_test

import (
	"fmt"
	"slices"
	"strings"
)

// The rows below are written as a careless program would.

// event is an event whose id is made of its stream and version.
func event(stream string, version int, name, data string) string {
	return fmt.Sprintf(`
insert into ledger_events
       (event_id, stream_id, version, type, schema_version, merchant_id, data, metadata, occurred_at)
values (md5('%[1]s %[2]d')::uuid, '%[1]s', %[2]d, '%[3]s', 1, 'acme', '%[4]s', '{}', now())`, stream, version, name, data)
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
	const (
		captured = "payment.captured.v1"
		intent   = `{"provider":"stripe","payment_intent":"pi_1"}`
		other    = `{"provider":"stripe","payment_intent":"pi_2"}`
		re1      = `{"refund_id":"re_1"}`
	)
	globex := func(sql string) string { return strings.Replace(sql, "'acme'", "'globex'", 1) }
	raw := func(values string) string {
		return "insert into ledger_events overriding system value values (" + values + ", now())"
	}
	first := event("ch_1", 1, "a", "{}")
	eur := func(leg, amount int) string { return posting(leg, "a:EUR", "b:EUR", amount) }
	return []guard{
		{"ledger_events_event_once", "an event happens once, whatever its version", []string{first}, strings.Replace(event("ch_1", 2, "a", "{}"), "ch_1 2", "ch_1 1", 1)},
		{"ledger_events_version_once", "a version of a stream has one event", []string{first, event("ch_2", 1, "a", "{}")}, strings.Replace(first, "ch_1 1", "another", 1)},
		{"ledger_events_one_beginning", "a stream has one beginning, whoever begins it", []string{first}, globex(strings.Replace(first, "ch_1 1", "another", 1))},
		{"ledger_events_previous_exists", "a stream does not begin in its middle", nil, event("ch_1", 2, "a", "{}")},
		{"ledger_events_previous_exists", "a stream has no gap", []string{first, event("ch_1", 2, "b", "{}")}, event("ch_1", 4, "d", "{}")},
		{
			"ledger_events_previous_exists", "an event does not follow another stream's",
			[]string{first, event("ch_2", 1, "a", "{}"), event("ch_2", 2, "b", "{}")},
			event("ch_1", 3, "c", "{}"),
		},
		{"ledger_events_previous_exists", "an event does not follow another merchant's", []string{first}, globex(event("ch_1", 2, "b", "{}"))},
		{"ledger_events_one_capture", "a charge is captured once", []string{event("ch_1", 1, captured, intent)}, event("ch_1", 2, captured, other)},
		{"ledger_events_one_capture", "also by a later version of the event", []string{event("ch_1", 1, captured, intent)}, event("ch_1", 2, "payment.captured.v2", other)},
		{
			"ledger_events_one_outcome", "a charge that succeeded does not fail",
			[]string{event("ch_1", 1, "charge.succeeded.v1", "{}"), event("ch_2", 1, "charge.failed.v1", "{}")},
			event("ch_1", 2, "charge.failed.v1", "{}"),
		},
		{"ledger_events_one_outcome", "a charge that failed does not succeed", []string{event("ch_1", 1, "charge.failed.v1", "{}")}, event("ch_1", 2, "charge.succeeded.v2", "{}")},
		{
			"ledger_events_one_capture_per_reference", "one payment intent pays for one charge",
			[]string{event("ch_1", 1, captured, intent), event("ch_2", 1, "payment.started.v1", intent)},
			event("ch_2", 2, captured, intent),
		},
		{
			"ledger_events_one_refund_outcome", "a refund that succeeded does not fail",
			[]string{event("ch_1", 1, "refund.succeeded.v1", re1), event("ch_1", 2, "refund.failed.v1", `{"refund_id":"re_2"}`), event("ch_2", 1, "refund.failed.v1", re1)},
			event("ch_1", 3, "refund.failed.v1", re1),
		},
		{
			"ledger_events_one_refund_reversal", "a refund is reversed once",
			[]string{event("ch_1", 1, "refund.succeeded.v1", re1), event("ch_1", 2, "refund.reversed.v1", re1)},
			event("ch_1", 3, "refund.reversed.v1", re1),
		},
		{
			"ledger_events_one_refund_per_reference", "one refund of the provider's is booked once",
			[]string{event("ch_1", 1, "refund.succeeded.v1", `{"refund_id":"re_1","provider":"stripe","provider_refund":"re_9"}`)},
			event("ch_1", 2, "refund.succeeded.v1", `{"refund_id":"re_2","provider":"stripe","provider_refund":"re_9"}`),
		},
		{
			"ledger_events_pkey", "a position is taken once",
			[]string{raw("-1, default, md5('e1')::uuid, 'ch_1', 1, default, 'a', 1, 'm', '{}', '{}'")},
			raw("-1, default, md5('e2')::uuid, 'ch_1', 2, default, 'a', 1, 'm', '{}', '{}'"),
		},
		{"ledger_events_version_check", "versions count from one", nil, event("ch_1", 0, "a", "{}")},
		{"ledger_events_schema_version_check", "schema versions count from one", nil, raw("default, default, md5('e1')::uuid, 'ch_1', 1, default, 'a', 0, 'm', '{}', '{}'")},
		{"ledger_events_data_check", "an event is an object", nil, event("ch_1", 1, "a", "[]")},
		{"ledger_events_metadata_check", "the cause of an event is an object", nil, raw("default, default, md5('e1')::uuid, 'ch_1', 1, default, 'a', 1, 'm', '{}', 'null'")},
		{"ledger_postings_leg_once", "a leg is posted once", []string{eur(1, 5), eur(2, 5)}, eur(1, 5)},
		{"ledger_postings_leg_check", "legs count from one", nil, eur(0, 5)},
		{"ledger_postings_amount_check", "a posting moves an amount", nil, eur(1, 0)},
		{"ledger_postings_two_accounts", "a posting is between two accounts", nil, posting(1, "a:EUR", "a:EUR", 5)},
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
		{"reservations_once", "a charge holds an article once", held, reservation("mug", 1, "open")},
		{"reservations_known_sku", "nothing is held of what nobody keeps", kept, reservation("plate", 1, "open")},
		{"reservations_quantity_check", "nothing is not held", kept, reservation("mug", 0, "open")},
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

func webhookGuards() []guard {
	secret := func(merchant string, generation int, rest string) string {
		return fmt.Sprintf(`
insert into webhook_secrets
       (merchant_id, generation, secret, secret_hash, created_by, ends_at)
values ('%s', %d, %s)`, merchant, generation, rest)
	}
	const (
		good = `'whsec_', sha256('s'), 'cli:me', null`
		told = `insert into merchants (merchant_id, webhook_url, webhook_generation) values ('g_1', 'https://shop.example', 1)`
	)
	resend := func(by string) string {
		return fmt.Sprintf(`
insert into webhook_resends
       (resend_id, event_id, charge_id, merchant_id, requested_by)
values (md5('r')::uuid, md5('e')::uuid, 'ch_1', 'g_1', '%s')`, by)
	}
	return []guard{
		{"webhook_secrets_pkey", "of two who replace one secret one wins", []string{merchant("g_1"), secret("g_1", 1, good)}, secret("g_1", 1, good)},
		{"webhook_secrets_merchant_id_fkey", "a secret has a merchant", nil, secret("nobody", 1, good)},
		{"webhook_secrets_generation_check", "secrets are counted", []string{merchant("g_1")}, secret("g_1", 0, good)},
		{"webhook_secrets_secret_hash_check", "a fingerprint is one", []string{merchant("g_1")}, secret("g_1", 1, `'whsec_', 'whsec_', 'cli:me', null`)},
		{"webhook_secrets_created_by_check", "a secret comes from somebody", []string{merchant("g_1")}, secret("g_1", 1, `'whsec_', sha256('s'), '', null`)},
		{"webhook_secrets_end_before_they_are_forgotten", "what signs is not forgotten", []string{merchant("g_1")}, secret("g_1", 1, `null, sha256('s'), 'cli:me', null`)},
		{"merchants_webhook_has_a_secret", "a webhook has a secret", nil, `insert into merchants (merchant_id, webhook_url) values ('g_1', 'https://shop.example')`},
		{"merchants_webhook_has_a_secret", "a secret has a webhook", nil, `insert into merchants (merchant_id, webhook_generation) values ('g_1', 1)`},
		{"merchants_webhook_secret_exists", "a secret that is used is there", nil, told},
		{"merchants_webhook_secret_exists", "and is the merchant's own", []string{merchant("g_2"), secret("g_2", 1, good)}, told},
		{"webhook_resends_pkey", "a resend is one", []string{resend("cli:me")}, resend("cli:you")},
		{"webhook_resends_requested_by_check", "and is wanted by somebody", nil, resend("")},
	}
}

func retentionGuards() []guard {
	const (
		said   = `insert into retention_windows (worker, outbox_window, inbox_window) values ('w', '1 day', '1 week')`
		leased = `insert into janitor_lease (holder, until) values ('w', now())`
	)
	return []guard{
		{"retention_windows_pkey", "a worker says one thing", []string{said}, said},
		{
			"retention_windows_inbox_longer", "an inbox does not forget with the outbox", nil,
			`insert into retention_windows (worker, outbox_window, inbox_window) values ('w', '24 hours', '1 day')`,
		},
		{
			"retention_windows_outbox_window_check", "an outbox keeps messages for a while", nil,
			`insert into retention_windows (worker, outbox_window, inbox_window) values ('w', '0', '1 day')`,
		},
		{"janitor_lease_pkey", "there is one lease", []string{leased}, leased},
		{
			"janitor_lease_only_one_check", "nor is there another beside it", nil,
			`insert into janitor_lease (only_one, holder, until) values (false, 'w', now())`,
		},
	}
}

func projectionGuards() []guard {
	const (
		advance = `update projections set txid = '7', position = 7, batch = batch + 1, after = 0 where state = 'live'`
		build   = `insert into projections (state) values ('building')`
		retire  = `update projections set state = 'retired', batch = batch + 1, after = batch where state = 'live'`
		listed  = `insert into charge_list values (1, 'ch_1', 'acme', 'o', 'pending', now(), 1, '{}')`
		balance = `insert into account_balances values (1, 'acme', 'a:EUR', 1, 0)`
	)
	takeOver := func(txid, position string) string {
		return `
update projections
   set state = 'live', batch = batch + 1, after = batch, took_over_txid = '` + txid + `', took_over_position = ` + position + `
 where state = 'building'`
	}
	return []guard{
		{"projections_folded_once", "two do not fold the same events", []string{advance}, advance},
		{"projections_folded_once", "nobody folds into what was retired", []string{retire}, `update projections set batch = batch + 1, after = 0`},
		{"projections_one_live", "one generation is live", nil, `insert into projections (state) values ('live')`},
		{"projections_one_live", "also while one takes over", []string{build}, takeOver("0", "0")},
		{"projections_one_building", "one generation is built", []string{build}, build},
		{"projections_never_behind", "a list does not go back", []string{build, retire}, takeOver("1", "0")},
		{"projections_never_behind", "nor by one event of a transaction", []string{build, retire}, takeOver("0", "1")},
		{"projections_state_check", "a generation is in a known state", nil, `insert into projections (state) values ('stale')`},
		{"projections_pkey", "a generation has its number alone", nil, `insert into projections (generation, state) overriding system value values (1, 'building')`},
		{"charge_list_once", "a charge is listed once", []string{listed}, listed},
		{"account_balances_once", "an account has one balance", []string{balance}, balance},
	}
}

func operationsGuards() []guard {
	result := func(values string) string {
		return "insert into audit_results (scope, checked, violated) values ('tables', " + values + ")"
	}
	return []guard{
		{"audit_results_once", "a scope has one result", []string{result("2, 1")}, result("3, 0")},
		{"audit_results_violated_of_checked", "more violations than cases", nil, result("2, 3")},
		{"audit_results_violated_of_checked", "fewer violations than none", nil, result("2, -1")},
		{"numbering_mark_pkey", "there is one mark", nil, `insert into numbering_mark (written_in) values ('3')`},
		{"numbering_mark_only_one_check", "no second mark beside it", nil, `insert into numbering_mark (only_one, written_in) values (false, '3')`},
	}
}
