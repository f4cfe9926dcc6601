package migrations_test

import "github.com/payonce/payonce/internal/postgres"

// grant is what the programs may do with a table: "" is nothing. Columns in
// parentheses, in the order of the table, are all that a verb may name.
type grant struct{ api, worker string }

func (g grant) of(role postgres.Role) string {
	if role == postgres.RoleAPI {
		return g.api
	}
	return g.worker
}

// grants are the decisions, one for each table and view of the schema.
func grants() map[string]grant {
	const (
		newEvent   = "insert (event_id, stream_id, version, type, schema_version, merchant_id, data, metadata, occurred_at)"
		newMessage = "insert (topic, message_id, payload, metadata)"
		strange    = "insert (receiver, message_id, payload, metadata, payload_hash)"
	)
	return map[string]grant{
		// Appended to by both, changed by nobody.
		"ledger_events":   {"select; " + newEvent, "select; " + newEvent},
		"ledger_postings": {"select; insert", "select; insert"},

		// Claimed by the api, swept by the worker.
		"idempotency_keys": {
			"select; insert (scope, operation, key, fingerprint, request, status_code, content_type, location, body, expires_at)",
			"select; update (request, content_type, body)",
		},

		// Sent by both, received and carried by the worker. The api takes in the
		// provider's news, and decides about what is parked for the merchant's operator.
		"outbox":         {"select; " + newMessage, "select; " + newMessage + "; delete"},
		"outbox_offsets": {"select", "select; insert; update (transaction_id, offset)"},
		"inbox": {
			"select; insert (receiver, message_id, ordering_key, partition_key, type, payload, metadata, payload_hash, status, due_at, attempts, fence, holder); " +
				"update (status, due_at, attempts, deaths, waits, waiting_since, fence, duplicates, decided_by, decided_at, finished_at)",
			"select; insert (receiver, message_id, ordering_key, partition_key, type, payload, metadata, payload_hash, status, due_at, attempts, fence, done_fence, holder); " +
				"update (status, due_at, attempts, deaths, waits, waiting_since, fence, done_fence, holder, duplicates, last_error, finished_at); delete",
		},
		"inbox_quarantine": {"select; " + strange, "select; " + strange + "; delete"},

		// Moved by the worker, read by the api for the audit.
		"stock":        {"select", "select; update (available, reserved, sold)"},
		"reservations": {"select", "select; insert; update (status)"},

		// Folded by the worker, read by the api.
		"projections":      {"select", "select; update (txid, position, highest, batch, after)"},
		"charge_list":      {"select", "select; insert; update"},
		"account_balances": {"select", "select; insert; update"},

		// Accounts are the operator's. The api asks api_keys_by_prefix, and the
		// worker where and how a merchant is told. Which secrets it may forget is a policy.
		"api_keys":        {},
		"merchants":       {"", "select (merchant_id, webhook_url, webhook_generation)"},
		"webhook_secrets": {"", "select; update (secret)"},
		"webhook_resends": {"", "select; update (delivered_at)"},

		// What only one of them has to do with.
		"cache_secret":      {"select (secret)", ""},
		"janitor_lease":     {"", "select; insert; update (holder, until)"},
		"retention_windows": {"", "select; insert; update (outbox_window, inbox_window, seen_at); delete"},
		"retention":         {"", "select"},
		"outbox_oldest":     {"", "select"},
		"numbering":         {"", "select"},
		"numbering_mark":    {},
		"audit_results":     {"", "select"},

		// Read at the start.
		"schema_migrations": {"select", "select"},
	}
}

// functions are those of the schema, with who may execute them.
func functions() []string {
	return []string{
		"api_keys_by_prefix: payonce_api",
		"charge_by_id: payonce_api",
		"charge_by_payment_intent: payonce_api",
		"end_half_sent: payonce_worker",
		"horizon_held: payonce_worker",
		"refuse_change: nobody",
		"snapshot_held: payonce_worker",
	}
}
