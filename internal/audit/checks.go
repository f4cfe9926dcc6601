package audit

import (
	_ "embed"
	"strings"
)

//go:embed facts.sql
var facts string

//go:embed checks.sql
var checksSQL string

// invariant is a statement about the rows, which one query checks over the facts.
type invariant struct {
	name  string
	whole bool   // reads whole tables; else the rows of one charge show it, so an increment checks it too
	query string // a row for each case: a complaint where it is violated, else null
}

// invariants are those of checks.sql.
var invariants = readInvariants(checksSQL)

func readInvariants(text string) (all []invariant) {
	for _, check := range strings.Split(text, "\n-- check: ")[1:] {
		name, query, _ := strings.Cut(check, "\n")
		all = append(all, invariant{name, strings.HasPrefix(query, "-- whole tables\n"), query})
	}
	return all
}
