package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/outbox"
)

// The engine's work, the same for all that do it. Accepting is one transaction: an
// idempotency key, a row for the charge, and a job or a message. Then come three
// steps, each a transaction with a row and an update, and before the second one's an
// HTTP request to this machine.

const createWork = `
create table work_charges (
  charge text  not null primary key,
  data   jsonb not null,
  step   int   not null default 0
) with (fillfactor = 80);
create table work_steps (
  charge text        not null,
  step   int         not null,
  answer text        not null,
  at     timestamptz not null default clock_timestamp(),
  constraint work_steps_once primary key (charge, step)
)`

const insertWork = `
insert into work_charges
       (charge, data)
values ($1, $2)`

const insertStep = `
insert into work_steps
       (charge, step, answer)
values ($1, $2, $3)`

const updateWork = `
update work_charges
   set step = $2
 where charge = $1`

// updateWorks is updateWork for several charges that share a commit.
const updateWorks = `
with stepped (charge, step) as (
  select *
    from unnest($1::text[], $2::int[])
)
update work_charges
   set step = (select step from stepped where stepped.charge = work_charges.charge)
 where charge = any (array(select charge from stepped))`

// writes are the statements that may share a commit.
func writes() *groupcommit.Statements {
	return groupcommit.NewStatements(slices.Concat(
		idempotency.Writes(), outbox.Writes(),
		[]groupcommit.Statement{
			{SQL: insertWork, ManyRows: "insert into work_charges (charge, data) select * from unnest($1::text[], $2::jsonb[])"},
			{SQL: insertStep, ManyRows: "insert into work_steps (charge, step, answer) select * from unnest($1::text[], $2::int[], $3::text[])"},
			{
				SQL: updateWork, ManyRows: updateWorks, Table: "work_charges", Key: 1,
			},
		},
		inbox.Writes(),
	)...)
}

// accept queues a charge.
func accept(b *pgx.Batch, id string, now time.Time) {
	body := []byte(`{"id":"` + id + `","amount":1000,"currency":"USD","status":"pending"}`)
	idempotency.Claim(b,
		idempotency.Key{Scope: "bench", Operation: "POST /v1/charges", Value: id},
		idempotency.Request{Fingerprint: idempotency.Fingerprint(body), Canonical: body},
		idempotency.Answer{
			StatusCode: http.StatusAccepted, Body: body,
			Header: http.Header{"Content-Type": {"application/json"}, "Location": {"/v1/charges/" + id}},
		},
		now.Add(24*time.Hour))
	b.Queue(insertWork, id, body)
}

const (
	steps    = 3
	postStep = 2
)

// work does the steps of one charge.
type work struct {
	client *http.Client
	post   string // the URL of the middle step
}

func newWork(post string, connections int) work {
	return work{post: post, client: &http.Client{
		Timeout:   10 * time.Second,
		Transport: &http.Transport{MaxIdleConnsPerHost: connections, MaxIdleConns: connections},
	}}
}

// committing commits a step, the last one or another.
type committing = func(ctx context.Context, b *pgx.Batch, last bool) error

// do does each step in a transaction of its own.
func (w work) do(ctx context.Context, id string, commit committing) error {
	for step := 1; step <= steps; step++ {
		answer, err := w.answer(ctx, id, step)
		if err != nil {
			return err
		}
		b := &pgx.Batch{}
		b.Queue(insertStep, id, step, answer)
		b.Queue(updateWork, id, step)
		if err := commit(ctx, b, step == steps); err != nil {
			return fmt.Errorf("commit step %d of %s: %w", step, id, err)
		}
	}
	return nil
}

// answer is the response of the middle step's request, "" of the other steps.
func (w work) answer(ctx context.Context, id string, step int) (string, error) {
	if step != postStep {
		return "", nil
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, w.post, strings.NewReader(id))
	if err != nil {
		return "", err
	}
	response, err := w.client.Do(request)
	if err != nil {
		return "", fmt.Errorf("post %s: %w", id, err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("post %s: status %d: %w", id, response.StatusCode, err)
	}
	return string(text), nil
}
