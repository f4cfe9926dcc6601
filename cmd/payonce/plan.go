package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/migrations/version"
)

type planCmd struct {
	reader

	JSON bool `name:"json" help:"Print the plan as JSON."`
}

// run exits with 1 if there are findings, or if the plan could not be finished.
func (p planCmd) run(ctx context.Context, c *console, db *postgres.DB) error {
	done, end := c.progress("events read")
	found, err := newPlan(ctx, db, done.Store)
	end()
	if err != nil {
		return err
	}
	if p.JSON {
		c.stdout.json(found)
	} else {
		found.print(&c.stdout)
	}
	if !found.OK {
		return errFound
	}
	return nil
}

// plan is what this program reads of a database, and what it would not understand.
type plan struct {
	OK             bool      `json:"ok"` // there are no findings
	Events         int64     `json:"events"`
	Charges        int64     `json:"charges"`
	Open           int64     `json:"open"`            // of the charges, those for which something is still to come
	Messages       int64     `json:"messages"`        // that wait, dead letters included
	DatabaseSchema int64     `json:"database_schema"` // the newest migration
	ProgramSchema  int64     `json:"program_schema"`  // the newest one that this program needs
	Findings       []finding `json:"findings"`        // never nil

	stream stream
}

// finding is something that this program does not understand.
type finding struct {
	Kind    string `json:"kind"`
	Name    string `json:"name"` // such as the type of the event
	Count   int64  `json:"count"`
	Example string `json:"example"`
}

// find counts a finding. The first of a kind and name is the example.
func (p *plan) find(kind, name string, count int64, format string, args ...any) {
	i := slices.IndexFunc(p.Findings, func(f finding) bool { return f.Kind == kind && f.Name == name })
	if i >= 0 {
		p.Findings[i].Count += count
		return
	}
	p.Findings = append(p.Findings, finding{kind, name, count, fmt.Sprintf(format, args...)})
}

// newPlan reads everything in one snapshot.
func newPlan(ctx context.Context, db *postgres.DB, progress func(events int64)) (*plan, error) {
	tx, err := db.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }() // it only reads
	p := &plan{Findings: []finding{}, ProgramSchema: version.Latest}
	if p.DatabaseSchema, err = version.Of(ctx, tx); err != nil {
		return nil, err
	}
	if p.DatabaseSchema > p.ProgramSchema {
		p.find("schema", "migration", p.DatabaseSchema-p.ProgramSchema, "this program knows those up to %d", p.ProgramSchema)
	}
	if err := p.readEvents(ctx, tx, progress); err != nil {
		return nil, fmt.Errorf("read the ledger: %w", err)
	}
	if err := p.readWaiting(ctx, tx); err != nil {
		return nil, fmt.Errorf("read the messages that wait: %w", err)
	}
	slices.SortFunc(p.Findings, func(a, b finding) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name)) })
	p.OK = len(p.Findings) == 0
	return p, nil
}

const selectEvents = `
select stream_id,
       version,
       type,
       data
  from ledger_events
 where (stream_id, version) > ($1, $2)
 order by stream_id, version
 limit $3`

const (
	planPage   = 1000     // events of a statement
	planStream = 16 << 20 // bytes of a charge's events: what a worker reads of one at most
)

// stream is the charge whose events are being read.
type stream struct {
	id      string
	version int // of the last event read
	events  []domain.Event
	bytes   int
	broken  bool // an event cannot be decoded
}

// readEvents decodes every event, and holds those of one charge at a time.
func (p *plan) readEvents(ctx context.Context, tx pgx.Tx, progress func(events int64)) error {
	for full := true; full; progress(p.Events) {
		var id, name string
		var number int
		var data []byte
		rows, _ := tx.Query(ctx, selectEvents, p.stream.id, p.stream.version, planPage) // ForEachRow returns its error
		page, err := pgx.ForEachRow(rows, []any{&id, &number, &name, &data}, func() error {
			p.see(id, number, name, data)
			return nil
		})
		if err != nil {
			return err
		}
		full = page.RowsAffected() == planPage
	}
	p.endStream()
	return nil
}

func (p *plan) see(id string, number int, name string, data []byte) {
	s := &p.stream
	if id != s.id {
		p.endStream()
		*s = stream{id: id}
		p.Charges++
	}
	p.Events++
	s.version, s.bytes = number, s.bytes+len(data)
	e, err := domain.Decode(name, data)
	if err != nil {
		p.find("event", name, 1, "%s version %d: %v", id, number, err)
	}
	s.broken = s.broken || err != nil
	if s.events = append(s.events, e); s.broken || s.bytes > planStream {
		s.events = nil
	}
}

// endStream folds the charge if all of its events can be decoded and something is still to come
// for it.
func (p *plan) endStream() {
	s := p.stream
	if s.id == "" || s.broken {
		return
	}
	if s.bytes > planStream {
		p.find("charge", "long", 1, "%s version %d: its events have more than %d bytes", s.id, s.version, planStream)
		return
	}
	c := domain.Fold(domain.Charge{ID: s.id}, s.events...)
	if c.Terminal() && len(c.Unnotified) == 0 && len(c.PendingRefunds()) == 0 {
		return
	}
	p.Open++
	if legal, err := domain.ValidateStream(s.events); err != nil {
		p.find("charge", domain.TypeOf(s.events[legal.Version]), 1, "%s: %v", s.id, err)
	} else if !c.Terminal() && c.Next() == "" {
		p.find("charge", "without a next step", 1, "%s version %d: it has no outcome after its last step", s.id, s.version)
	}
}

// consumerGroup is the one by which workers read the outbox.
const consumerGroup = "inbox"

// selectWaiting counts what is to be received, by topics, what is to be handled, by receivers, and
// the offsets, by consumer groups. A dead letter may be retried.
const selectWaiting = `
with waiting as (
  select 'topic' as kind, o.topic as name, o.metadata ->> 'type' as type, o.metadata ->> 'ordering_key' as charge_id, o.message_id
    from outbox o
    left join outbox_offsets f
      on f.topic = o.topic
     and f.consumer_group = $1
   where (o.transaction_id, o."offset") > (coalesce(f.transaction_id, '0'), coalesce(f."offset", 0))
   union all
  select 'receiver', receiver, type, ordering_key, message_id from inbox where status in ('pending', 'running')
   union all
  select 'receiver', receiver, type, ordering_key, message_id from inbox where status = 'dead'
   union all
  select 'consumer group', consumer_group, '', topic, null from outbox_offsets
)
select kind,
       name,
       coalesce(type, ''),
       count(*),
       min(concat_ws(' ', charge_id, message_id))
  from waiting
 group by kind, name, type`

func (p *plan) readWaiting(ctx context.Context, tx pgx.Tx) error {
	receivers := fulfillment.New(nil, fulfillment.Services{}, slog.New(slog.DiscardHandler)).Receivers()
	var kind, name, of, example string
	var count int64
	rows, _ := tx.Query(ctx, selectWaiting, consumerGroup) // ForEachRow returns its error
	_, err := pgx.ForEachRow(rows, []any{&kind, &name, &of, &count, &example}, func() error {
		if kind == "consumer group" {
			if name != consumerGroup {
				p.find(kind, name, count, "of the topic %s: no worker reads as this group", example)
			}
			return nil
		}
		p.Messages += count
		i := slices.IndexFunc(receivers, func(r fulfillment.Receiver) bool {
			return kind == "topic" && r.Topic == name || kind == "receiver" && r.Name == name
		})
		if i < 0 {
			p.find(kind, name, count, "%s: no worker has this %s", example, kind)
		} else if r := receivers[i]; !r.Takes(of) {
			p.find("message", of, count, "%s: %s does not know the type", example, r.Name)
		}
		return nil
	})
	return err
}

// print prints a line for each finding, and what was read.
func (p *plan) print(out *printer) {
	if !p.OK {
		printList(out, false, p.Findings, "KIND\tNAME\tCOUNT\tEXAMPLE", func(f finding) []any { return []any{f.Kind, f.Name, f.Count, f.Example} })
	}
	out.printf("%d events of %d charges, %d of them open, and %d waiting messages: %d findings\n", p.Events, p.Charges, p.Open, p.Messages, len(p.Findings))
	out.printf("the schema has version %d, this program needs %d%s\n", p.DatabaseSchema, p.ProgramSchema,
		map[bool]string{true: ": run payonce migrate first"}[p.DatabaseSchema < p.ProgramSchema])
}
