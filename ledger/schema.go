package ledger

import _ "embed"

//go:embed schema.sql
var schema string

// Schema returns the SQL that creates ledger_events, ledger_postings, projections, charge_list and account_balances in an empty
// database. It is plain SQL, to be run once in a transaction.
func Schema() string { return schema }
