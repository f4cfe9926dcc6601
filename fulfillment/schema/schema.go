// Package schema holds the tables of fulfillment: stock and reservations.
//
// It is a package of its own because package migrations imports it, and a program that
// migrates, or checks that it need not, must not link the provider's client with it.
package schema

import _ "embed"

//go:embed schema.sql
var sql string

// SQL returns the SQL that creates the tables in an empty database.
func SQL() string { return sql }
