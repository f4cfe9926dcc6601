package e2e_test

// mutants are the planted bugs. docs/proof.md has the same table.
func mutants() []mutant {
	return []mutant{
		{
			"the fence is read from the row instead of compared with it",
			[]edit{{"inbox/settle.go", "done_fence  = $2,", "done_fence  = fence + 0 * $2::bigint,"}},
			byTest("./inbox", "TestLease/a message of a silent holder is taken over, and the holder loses its whole commit", "want a lost lease"),
		},
		{
			"leases are not renewed",
			[]edit{{"inbox/lease.go", "	if len(held) == 0 {\n		return\n	}\n	ctx, cancel", "	if len(held) >= 0 {\n		return\n	}\n	ctx, cancel"}},
			byTest("./inbox", "TestLease/a heartbeat keeps the message of a handler that works for longer than a lease", "it was taken from a holder that lives"),
		},
		{
			"a taken key does nothing instead of refusing",
			[]edit{{"idempotency/answer.go", "values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`", "values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)\non conflict do nothing`"}},
			byTest("./intake", "TestRivals/of sixty-four requests under one key one makes the charge, and all get its bytes", "answers, "),
		},
		{
			"an expired key is new again",
			[]edit{{"idempotency/answer.go", "   and k.key = $3`", "   and k.key = $3\n   and k.expires_at > c.now`"}},
			byTest("./intake", "TestKeys/an expired key is told apart and never accepts again", "want ErrExpired"),
		},
		{
			"the outbox is read without the horizon",
			[]edit{
				{"outbox/subscriber.go", "   and o.transaction_id < pg_snapshot_xmin(pg_current_snapshot())\n order by", " order by"},
				{"outbox/subscriber.go", "\n              and m.transaction_id < pg_snapshot_xmin(pg_current_snapshot()))", ")"},
			},
			byTest("./outbox", "TestOrder/an older transaction that commits late is not passed over", "young"),
		},
		{
			"pages follow the text of the transaction id",
			[]edit{
				{"outbox/subscriber.go", "o.transaction_id::text as xid,", "o.transaction_id::text,"},
				{"outbox/subscriber.go", "order by o.transaction_id, o", "order by transaction_id, o"},
			},
			byTest("./outbox", "TestPagesFollowTransactionIDsAsNumbers", ""),
		},
		{
			"a commit is told from its last statement, not from its end",
			[]edit{{
				"internal/postgres/commit.go", "	return outcome(conn.SendBatch(ctx, b).Close())", `	results := conn.SendBatch(ctx, b)
	defer results.Close()
	for range b.Len() {
		if _, err := results.Exec(); err != nil {
			return outcome(err)
		}
	}
	return nil`,
			}},
			byTest("./internal/postgres", "TestCommit/a constraint that is checked at commit refuses too", "want one of effects_twin_once"),
		},
		{
			"an unknown commit is taken for a failed one",
			[]edit{{
				"internal/postgres/commit.go",
				"	return fmt.Errorf(\"%w: %w\", ErrUnknown, err)\n}\n\n// isRefusal",
				"	return fmt.Errorf(\"%w: %w\", ErrNotCommitted, err)\n}\n\n// isRefusal",
			}},
			byTest("./internal/postgres", "TestCommitOfACutConnection/a session that is ended under a commit leaves its outcome unknown", "want ErrUnknown"),
		},
		{
			"net/http may repeat a provider call by itself",
			[]edit{{"internal/stripe/transport.go", "	once.GetBody = nil\n", ""}},
			byTest("./internal/stripe", "TestCall_is_sent_once_on_a_reused_connection_that_is_cut/confirm", "the provider saw 3 requests, want 2"),
		},
	}
}
