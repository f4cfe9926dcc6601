package merchants

import _ "embed"

//go:embed schema.sql
var schema string

// Schema returns the SQL that creates merchants, api_keys and webhook_secrets in an empty
// database. It is plain SQL, to be run once in a transaction.
func Schema() string { return schema }
