package outbox

import _ "embed"

//go:embed schema.sql
var schema string

// Schema returns the SQL that creates outbox, outbox_offsets and numbering_mark in an empty
// database. It is plain SQL, to be run once in a transaction.
func Schema() string { return schema }
