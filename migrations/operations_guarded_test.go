package migrations_test

// operationsGuards are those of the audit and of the numbering.
func operationsGuards() []guard {
	return []guard{
		{
			constraint: "audit_results_once", name: "one result of a scope",
			before:  []string{`insert into audit_results (scope, checked, violated) values ('tables', 2, 1)`},
			refused: `insert into audit_results (scope, checked, violated) values ('tables', 3, 0)`,
		},
		{
			constraint: "audit_results_violated_of_checked", name: "more violations than cases",
			refused: `insert into audit_results (scope, checked, violated) values ('tables', 2, 3)`,
		},
		{
			constraint: "audit_results_violated_of_checked", name: "fewer violations than none",
			refused: `insert into audit_results (scope, checked, violated) values ('tables', 2, -1)`,
		},
		{
			constraint: "numbering_mark_pkey", name: "one mark",
			refused: `insert into numbering_mark (written_in) values ('3')`,
		},
		{
			constraint: "numbering_mark_only_one_check", name: "nor is there another beside it",
			refused: `insert into numbering_mark (only_one, written_in) values (false, '3')`,
		},
	}
}
