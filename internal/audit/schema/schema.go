// Package schema holds the tables of the audit, its results and its progress, and those of operators' actions.
//
// It is a package of its own because package migrations imports it, and a program that migrates must not
// link the provider's client, which the audit needs.
package schema

import _ "embed"

//go:embed schema.sql
var sql string

// SQL returns the SQL that creates the tables behind those of the ledger.
func SQL() string { return sql }
