package outbox

import _ "embed"

//go:embed schema.sql
var schema string

// Schema returns the SQL that creates outbox, outbox_offsets and numbering_mark in the first schema of
// the search_path. goose and psql apply it as it is, once, in a transaction. It has no way down.
func Schema() string { return schema }
