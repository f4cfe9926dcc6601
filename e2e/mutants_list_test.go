package e2e_test

// mutants are the planted bugs, each with the run that catches it.
func mutants() []mutant {
	return []mutant{
		{
			"the idempotency key is stored after the charge, in a separate commit",
			[]edit{{
				"idempotency/receive.go", "		return answer, db.Commit(ctx, b)\n",
				`		if err := db.Commit(ctx, written); err != nil {
			return answer, err
		}
		claim := &pgx.Batch{}
		Claim(claim, key, request, answer, expires)
		return answer, db.Commit(ctx, claim)
`,
			}},
			byWalk("success/api/postgres.setMerchant, ledger.insertEvent, ledger.insertPosting, outbox.insertMessage/after/kill", "accepted under 0 keys"),
		},
		{
			"the outbox message is stored after the charge, in a separate commit",
			[]edit{{
				"idempotency/receive.go", "		return answer, db.Commit(ctx, b)\n",
				`		message := &pgx.Batch{}
		message.QueuedQueries = b.QueuedQueries[b.Len()-1:]
		b.QueuedQueries = b.QueuedQueries[:b.Len()-1]
		if err := db.Commit(ctx, b); err != nil {
			return answer, err
		}
		return answer, db.Commit(ctx, message)
`,
			}},
			byWalk("success/api/postgres.setMerchant, idempotency.insertAnswer, ledger.insertEvent, ledger.insertPosting/after/kill", "liveness"),
		},
		{
			"stock is taken in one commit, and its event is appended in another",
			[]edit{
				{
					"fulfillment/run.go", "				s.queueRows(b, r.stream.Charge, e.Event)\n",
					`				rows := &pgx.Batch{}
				s.queueRows(rows, r.stream.Charge, e.Event)
				if rows.Len() > 0 {
					if err := r.db.Commit(context.Background(), rows); err != nil {
						return next, err
					}
				}
`,
				},
			},
			byWalk("success/worker/fulfillment.insertReservation, fulfillment.moveStock/after/kill", "liveness"),
		},
		{
			"the merchant is recorded as notified before the webhook is sent",
			[]edit{
				{
					"fulfillment/notification.go", "		if !delivered {",
					"		if false && !delivered {",
				},
				{
					"fulfillment/subscriber.go", "			return due\n		}\n		return r.process(ctx)\n",
					`			return due
		}
		err = r.process(ctx)
		if err == nil {
			err = f.deliver(ctx, r.stream, about)
		}
		return err
`,
				},
			},
			byWalk("success/worker/POST /shop/webhooks/before/kill", "every outcome reached the merchant"),
		},
		{
			"each delivery of a webhook has a new webhook-id",
			[]edit{
				{"fulfillment/notification.go", "\t\"errors\"\n", "\t\"errors\"\n\t\"time\"\n"},
				{
					"fulfillment/notification.go", "ID: outcome.ID.String(), Body: body,",
					"ID: outcome.ID.String() + time.Now().String()[20:26], Body: body,",
				},
			},
			byWalk("success/worker/POST /shop/webhooks/after/kill", "every outcome reached the merchant"),
		},
		{
			"the messages of a worker that died are never claimed by another",
			[]edit{{"inbox/holders.go", "and (holder <> $6 and holder not in (select holder from inbox_holders where receiver = $1)\n", "and (false\n"}},
			byWalk("success/worker/POST /v1/payment_intents/after/kill", "liveness"),
		},
		{
			"a declined payment is confirmed a second time, under a new key",
			[]edit{
				{
					"fulfillment/payment.go", "(i.Status == stripe.RequiresPaymentMethod && !i.Attempted)",
					"i.Status == stripe.RequiresPaymentMethod",
				},
				{
					"fulfillment/payment.go", "key := s.At(s.Charge.AttemptVersion).ID.String()",
					"key := fmt.Sprint(time.Now().UnixNano())",
				},
			},
			byWalk("declined/worker/POST /v1/payment_intents/:id/confirm/after/kill", "should be failed card_declined"),
		},
		{
			"each attempt creates a payment intent under a new key",
			[]edit{
				{
					"fulfillment/payment.go", "CreateIntent(ctx, c.CreationKey(),",
					"CreateIntent(ctx, fmt.Sprint(time.Now().UnixNano()),",
				},
			},
			byWalk("success/worker/POST /v1/payment_intents/after/kill", "one payment intent per attempt"),
		},
		{
			"a payment intent is created without a key",
			[]edit{{
				"internal/stripe/intent.go", "		params.Description = stripego.String(p.Description)\n	}\n	params.SetIdempotencyKey(key)\n",
				"		params.Description = stripego.String(p.Description)\n	}\n",
			}},
			byWalk("success/worker/POST /v1/payment_intents/after/kill", "one payment intent per attempt"),
		},
		{
			"a declined charge fails, and its intent is not canceled",
			[]edit{{
				"fulfillment/payment.go", "	p.intent, p.failing = nil, &failing\n",
				"	if failing.Code == domain.CardDeclined {\n		return s.Charge.Fail(failing), nil\n	}\n	p.intent, p.failing = nil, &failing\n",
			}},
			byWalk("declined/worker/POST /v1/payment_intents/:id/confirm/after/kill", "its intent is canceled"),
		},
		{
			"a charge fails at a deadline although its money was taken",
			[]edit{{
				"fulfillment/payment.go", "	case stripe.Canceled, stripe.Succeeded, stripe.Processing:\n		return p.recordIntent(ctx, s)\n",
				"	case stripe.Canceled, stripe.Succeeded, stripe.Processing:\n		return s.Charge.Fail(failing), nil\n",
			}},
			byTest("./fulfillment", "TestDeadline/a capture before the deadline wins", "declined(expired), want"),
		},
		{
			"a payment that waits is read after the deadline of its charge",
			[]edit{{"fulfillment/wait.go", "			pause = min(pause, at.Sub(now))\n", ""}},
			byTest("./fulfillment", "TestProcessingWait_doublesItsReads", "until the deadline"),
		},
		{
			"what banks take days for is read every second",
			[]edit{{"fulfillment/wait.go", "		pause = min(max(now.Sub(since), minReadInterval), maxReadInterval)\n", ""}},
			byTest("./fulfillment", "TestProcessingWait_doublesItsReads", "reads a second"),
		},
		{
			"a refund is sent under a new key each time, without reading the provider's list",
			[]edit{
				{
					"fulfillment/refund.go", "CreateRefund(ctx, refund.ProviderKey(),",
					"CreateRefund(ctx, fmt.Sprint(time.Now().UnixNano()),",
				},
				{
					"fulfillment/refund.go", "	if !found {\n",
					"	if false {\n",
				},
			},
			byWalk("refund/worker/POST /v1/refunds/after/kill", "refund"),
		},
		{
			"stock is returned before the failure is recorded, in a separate commit",
			[]edit{
				{
					"fulfillment/run.go", "				s.queueRows(b, r.stream.Charge, e.Event)\n",
					`				rows := b
				_, released := e.Event.(domain.InventoryReleased)
				if released {
					rows = &pgx.Batch{}
				}
				s.queueRows(rows, r.stream.Charge, e.Event)
				if released && rows.Len() > 0 {
					if err := r.db.Commit(context.Background(), rows); err != nil {
						return next, err
					}
				}
`,
				},
			},
			byWalk("declined/worker/fulfillment.moveStock, fulfillment.endReservations/after/kill", "liveness"),
		},
		{
			"the fence is read from the row instead of being compared with it",
			[]edit{
				{"inbox/finish.go", "done_fence  = (select max(fence) from ending where ending.id = inbox.id),", "done_fence  = fence,"},
				{"inbox/finish.go", " where (id, fence, message_id) not in (select id, done_fence, message_id from ended)`", " where id not in (select id from ended)`"},
			},
			byTest("./inbox", "TestTakeover/another process continues, and the silent holder loses its whole commit", "the first holder's commit ended with"),
		},
		{
			"two holders that end one delivery in the same statement both succeed",
			[]edit{{"inbox/finish.go", " where (id, fence, message_id) not in (select id, done_fence, message_id from ended)`", " where id not in (select id from ended)`"}},
			byTest("./groupcommit", "TestDeliveries_refuseTheOlderOfTwoHolders", "it has the error <nil>"),
		},
		{
			"deliveries that end in one group commit are locked in the order of the table",
			[]edit{{"inbox/finish.go", "   order by id\n     for no key update\n", "     for no key update\n"}},
			byTest("./groupcommit", "TestDeliveries_lockInOrder", "while the fourth was waited for"),
		},
		{
			"a holder does not renew its registration",
			[]edit{{"inbox/holders.go", "\tif len(held) == 0 {\n", "\tif len(held) >= 0 {\n"}},
			byTest("./inbox", "TestTakeover/a holder that beats keeps its message for longer than a lease", "interval '2 seconds'"),
		},
		{
			"a holder that lost its messages lets their handlers go on",
			[]edit{{"inbox/holders.go", "\t\t\th.cancel(errLost)\n", ""}},
			byTest("./inbox", "TestTakeover/a holder that returns ends the context of handlers whose messages it lost", "waiting for the end of its context"),
		},
		{
			"a processor takes over at once after an outage of the database",
			[]edit{{"inbox/holders.go", "\tif now.Sub(p.reached) > p.timeout() {\n", "\tif now.Sub(p.reached) < 0 {\n"}},
			byTest("./inbox", "TestMayTakeOver", "it takes over: true"),
		},
		{
			"the hold on a held order does nothing instead of refusing the batch",
			[]edit{{"ledger/append.go", "values ($1, $2, $3)`", "values ($1, $2, $3)\non conflict do nothing`"}},
			byTest("./intake", "TestAcceptCharge_onceForEachOrder", "answers accept a charge, want the two of one key"),
		},
		{
			"a failed charge keeps its order",
			[]edit{{"ledger/append.go", "case domain.ChargeFailed:", "case nil:"}},
			byWalk("one charge per order/worker/POST /v1/payment_intents/after/kill", "failed, and holds its order"),
		},
		{
			"the insert of a taken key does nothing instead of refusing the batch",
			[]edit{{"idempotency/store.go", "values ($1, $2, $3, $4, $5, $6, $7, $8, $9)`", "values ($1, $2, $3, $4, $5, $6, $7, $8, $9)\non conflict do nothing`"}},
			byTest("./idempotency", "TestPromises/Receive/of many calls at once one does the work", "effects, want 1"),
		},
		{
			"an expired key is accepted as a new one",
			[]edit{{"idempotency/store.go", "               and key = asked.value\n", "               and key = asked.value\n               and expires_at > clock_timestamp()\n"}},
			byTest("./idempotency", "TestPromises/Receive/an expired key is refused for ever", "want the error the key has expired"),
		},
		{
			"the fingerprint covers the raw bytes of the request",
			[]edit{
				{"internal/httpapi/decode.go", "	if len(body) == 0 && optional {", "	c.Set(\"raw\", body)\n	if len(body) == 0 && optional {"},
				{"internal/httpapi/keys.go", "[]byte(m), canonical),", "[]byte(m), c.Get(\"raw\").([]byte)),"},
			},
			byTest("./internal/httpapi", "TestReplay_ignoresSpelling/white space", "not the first answer"),
		},
		{
			"a page that was received is not acknowledged",
			[]edit{{"inbox/receive.go", "		p.OnReceive(r)\n	}\n	return r, nil\n", "		p.OnReceive(r)\n	}\n	return r, errors.New(\"not now\")\n"}},
			byWalk("success/worker/POST /v1/payment_intents/after/kill", "work is left"),
		},
		{
			"a page is acknowledged before it is stored",
			[]edit{{"inbox/consume.go", "\t\t_, err := p.receive(ctx, column(page,", "\t\tfor _, m := range page {\n\t\t\tm.Ack()\n\t\t}\n\t\t_, err := p.receive(ctx, column(page,"}},
			byTest("./inbox", "TestConsume/refuses what cannot be stored, and stores it when it can", "some are refused"),
		},
		{
			"a message is claimed although it is not first of its key",
			[]edit{{"inbox/claim.go", "     and status = 'pending'\n     and first\n     and due_at <= now()\n", "     and status = 'pending'\n     and due_at <= now()\n"}},
			byTest("./inbox", "TestEnd_keysAreOrderedAndOneAtATime", "until all messages are done"),
		},
		{
			"the newest message of a key becomes first",
			[]edit{{"inbox/store.go", "                  order by b.ordering_key, b.id\n                  limit 1)\n", "                  order by b.ordering_key, b.id desc\n                  limit 1)\n"}},
			byTest("./inbox", "TestEnd_keysAreOrderedAndOneAtATime", "order of a key"),
		},
		{
			"the end of a message makes no other one first",
			[]edit{{"inbox/finish.go", "\tb.Queue(promote, d.receiver, d.OrderingKey)\n", ""}},
			byTest("./inbox", "TestProcessor_handOverNeedsNoPoll/one key", "want no pause of a second before each"),
		},
		{
			"a key without a first message is not repaired",
			[]edit{{"inbox/claim.go", "\tp.promoteStranded(ctx, stranded)\n", ""}},
			byTest("./inbox", "TestPromote_repairsAKeyWithoutAFirstMessage", "until all messages are done"),
		},
		{
			"a dead letter lets the next message of its key run",
			[]edit{{"inbox/finish.go", "       first         = not (e.dead and $11),\n", "       first         = not (e.dead and ($11 or true)),\n"}},
			byTest("./inbox", "TestEnd_statesOfAMessage/a dead letter", "status = 'dead' and first"),
		},
		{
			"the outbox deletes a page of which a message was refused",
			[]edit{{"outbox/reader.go", "r.ids[:r.acked]}}", "r.ids}}"}},
			byTest("./outbox", "TestSubscriber_deliversAgainFromTheFirstThatIsRefused", "waiting for message 1 of 3"),
		},
		{
			"a message that commits late, with a smaller id, is passed over",
			[]edit{{"outbox/reader.go", "\t\tafter = 0\n", ""}},
			byTest("./outbox", "TestSubscriber_findsAMessageThatCommitsLateWithASmallerID", "waiting for message 1 of 1"),
		},
		{
			"a forwarder acknowledges what the broker refused",
			[]edit{{"outbox/forward.go", "\t\tif err == nil {\n\t\t\tm.Ack()\n", "\t\tif err == nil || topic != \"\" {\n\t\t\tm.Ack()\n"}},
			byTest("./outbox", "TestForward_publishesAgainWhatThePublisherRefused/by an error", "messages (-want +got)"),
		},
		{
			"a commit is reported after its last statement, before Close",
			[]edit{{
				"groupcommit/committer.go", "	if err := conn.SendBatch(ctx, b).Close(); err != nil {\n		return Classify(err)\n	}\n", `	results := conn.SendBatch(ctx, b)
	defer results.Close()
	for range b.Len() {
		if _, err := results.Exec(); err != nil {
			return Classify(err)
		}
	}
`,
			}},
			byTest("./groupcommit", "TestCommit/a constraint that is checked at commit refuses too", "want one of effects_twin_once"),
		},
		{
			"a commit with an unknown outcome is reported as not committed",
			[]edit{{
				"groupcommit/outcome.go",
				"	return fmt.Errorf(\"%w: %w\", ErrUnknown, err)\n}\n\n// isRefusal",
				"	return fmt.Errorf(\"%w: %w\", ErrNotCommitted, err)\n}\n\n// isRefusal",
			}},
			byTest("./groupcommit", "TestCommitOfACutConnection/a session that is ended under a commit leaves its outcome unknown", "want ErrUnknown"),
		},
		{
			"a refused group commit refuses every batch in it",
			[]edit{{
				"groupcommit/committer.go", "	case OutcomeOf(err) != Unknown:\n", "	case false:\n",
			}},
			byTest("./groupcommit", "TestGroupCommit_equalsIndividualCommits", "has the error ERROR"),
		},
		{
			"a batch in a group commit writes as the tenant of the batch before it",
			[]edit{{"groupcommit/group.go", "			setTenant(b, tenant)\n", ""}},
			byTest("./groupcommit", "TestGroupCommit_equalsIndividualCommits", "a group is refused of which each batch passes"),
		},
		{
			"group commits lock rows in the order of arrival",
			[]edit{{
				"groupcommit/group.go",
				"		return cmp.Or(cmp.Compare(a.table, b.table), slices.CompareFunc(a.row, b.row, compareKeys))\n", "		return 0\n",
			}},
			byTest("./groupcommit", "TestGroupCommit_locksInOneOrder", "select deadlocks::text"),
		},
		{
			"one statement inserts rows of several tenants",
			[]edit{{"groupcommit/group.go", " && all[n].tenant == tenant", ""}},
			byTest("./groupcommit", "TestGroupCommit_equalsIndividualCommits", "a group is refused of which each batch passes"),
		},
		{
			"batched reads all run as the first tenant",
			[]edit{{"intake/intake.go", "		for scope, states := range scopes {\n", "		for _, states := range scopes {\n			scope := keys[0].Scope\n"}},
			byTest("./intake", "TestBatchedRead", "found false"),
		},
		{
			"a key that is taken is claimed by another call",
			[]edit{{"idempotency/once.go", "b.Queue(insertAnswer, ", "b.Queue(insertAnswer+` on conflict do nothing`, "}},
			byTest("./idempotency", "TestPromises/Once/of many calls at once one does the work", "effects, want 1"),
		},
		{
			"a commit whose answer was lost is treated as committed",
			[]edit{{"idempotency/once.go", "	return groupcommit.Classify(tx.Commit(ctx))\n", "	_ = tx.Commit(ctx)\n	return nil\n"}},
			byTest("./idempotency", "TestPromises/Once/a COMMIT that is cut is found or done again/a COMMIT whose answer is lost is found by its key", "want {Answer:done Replayed:true"),
		},
		{
			"a response that refuses keeps the writes of its handler",
			[]edit{{"idempotency/once.go", "		end = savepoint.Rollback\n", "		_ = savepoint.Rollback\n"}},
			byTest("./idempotency", "TestMiddleware_statuses/404 is replayed: true", "1 effects, want 0"),
		},
		{
			"a refund made outside is looked for only after one of ours",
			[]edit{{"fulfillment/refund.go", "		if known || object.Status", "		if c.AmountRefunded() == 0 || known || object.Status"}},
			byWalk("dashboard refund/worker/GET /v1/refunds/after/kill", "every refund is one of the ledger's"),
		},
		{
			"a dispute is recorded without its movements",
			[]edit{{"fulfillment/observer.go", "range d.Moved {", "range d.Moved[:0] {"}},
			byWalk("dispute/worker/GET /v1/disputes/after/kill", "withheld sums equal the ledger's"),
		},
		{
			"net/http may repeat a provider call on its own",
			[]edit{{"internal/stripe/client.go", "	once.GetBody = nil\n", ""}},
			byTest("./internal/stripe", "TestCall_isSentOnceOnAReusedConnectionThatIsCut", "the provider saw 3 requests, want 2"),
		},
		{
			"a charge fails because the secret key is of the wrong mode",
			[]edit{{"internal/stripe/errors.go", "	case isOfAccount(e):\n", "	case isOfAccount(e) && a.Status == 0:\n"}},
			byTest("./internal/stripe", "TestCall_classifiesEveryAnswer/a test key for a live card", "want \"needs an operator\""),
		},
		{
			"a worker of another account is admitted",
			[]edit{{"internal/restore/account.go", "	case bound != account || boundLive != live:\n", "	case bound != account && boundLive != live:\n"}},
			byTest("./internal/restore", "TestBind", "the other is refused"),
		},
		{
			"the circuit breaker sends more than one probe",
			[]edit{{"internal/stripe/limits.go", "			Timeout:     openPause,\n", "			Timeout:     openPause, MaxRequests: 2,\n"}},
			byTest("./internal/stripe", "TestLimiter_probesAProviderThatIsAway", "a second probe"),
		},
	}
}
