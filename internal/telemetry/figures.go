package telemetry

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/time/rate"

	"github.com/payonce/payonce/internal/postgres"
)

// Bounds of what scrapes may cost the database.
const (
	figuresFor     = 10 * time.Second // for which an answer is repeated
	figuresTimeout = 3 * time.Second

	// countedAtMost bounds what is counted, so that a backlog of millions does not keep the
	// gauges from being read.
	countedAtMost = 100_000
)

const figuresUp = "payonce_figures_up"

// allFigures are gauges that the database alone knows.
var allFigures = []Metric{
	{figuresUp, gauge, "1 if the gauges below could be read from the database, else 0.", nil},
	{"payonce_inbox_messages", gauge, "Messages in the inbox that are not finished. pending: due. waiting: due later, such as after an outage of the provider. running: a worker has claimed it. dead: a dead letter. 100000 means at least so many.", []Label{{Name: "receiver"}, {Name: "status"}}},
	{"payonce_inbox_oldest_age_seconds", gauge, "Time since the oldest pending or running message was received, or since it is due again after a wait for a service that said that it takes long.", []Label{{Name: "receiver"}}},
	{"payonce_outbox_unread_messages", gauge, "Messages in the outbox, which their reader has not acknowledged. 100000 means at least so many.", []Label{{Name: "topic"}}},
	{"payonce_outbox_unread_age_seconds", gauge, "Time since the oldest message in the outbox was stored.", []Label{{Name: "topic"}}},
	{"payonce_paused", gauge, "What operators have paused: a receiver, 1, or merchants, how many.", []Label{{Name: "what"}}},
	{"payonce_audit_violations", gauge, "Violations that the last audit found. scope: tables, provider, or recent: what the workers found since the last audit of the tables began.", []Label{{Name: "scope"}}},
	{"payonce_audit_finished_timestamp_seconds", gauge, "When the last audit ended, in seconds since 1970; recent: the workers have audited what was recorded before.", []Label{{Name: "scope"}}},
}

// figure is a gauge as a statement returns it.
type figure struct {
	Name   string
	Labels []string // a value of each
	Value  float64
}

// Figures adds what the database alone knows, of a topic of the outbox and receivers of messages. Scrapes
// read it, at most every ten seconds; those that come meanwhile wait for the same answer. If one gauge
// cannot be read, the only one that is shown is payonce_figures_up, 0, for as long. Figures is called at
// most once.
func (r *Registry) Figures(db *postgres.DB, topic string, receivers []string) {
	var reading sync.Mutex
	var last []figure
	seldom := rate.Sometimes{Interval: figuresFor}
	r.gauges(func(show show) {
		reading.Lock()
		defer reading.Unlock()
		seldom.Do(func() {
			read, err := readFigures(db, topic, receivers)
			last = append(read, figure{Name: figuresUp, Value: 1})
			if err != nil {
				r.log.Warn("metrics could not be read", "error", err)
				last = []figure{{Name: figuresUp}}
			}
		})
		for _, f := range last {
			show(f.Name, f.Value, f.Labels...)
		}
	}, allFigures...)
}

// readFigures reads the figures. A scrape that is given up serves the next one.
func readFigures(db *postgres.DB, topic string, receivers []string) (all []figure, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), figuresTimeout)
	defer cancel()
	b := &pgx.Batch{}
	b.Queue(selectBacklog, receivers, countedAtMost)
	b.Queue(selectUnread, countedAtMost, topic)
	b.Queue(selectAudits)
	b.Queue(selectPaused, receivers)
	for _, q := range b.QueuedQueries {
		q.Query(func(rows pgx.Rows) error {
			all, err = pgx.AppendRows(all, rows, pgx.RowToStructByPos[figure])
			return err
		})
	}
	if err := db.Pool().SendBatch(ctx, b).Close(); err != nil {
		return nil, fmt.Errorf("read what the database alone knows: %w", err)
	}
	return all, nil
}

// selectBacklog reads the queues of the inbox. Each part has a partial index, so finished messages
// cost nothing. Of a longer queue it reads those that are due first, among which the oldest are. A
// message that is first of its key and whose wait has NoDeadline (inbox.WaitError), and those behind
// it, are as old as its wait is overdue.
const selectBacklog = `
-- telemetry.selectBacklog
with found as (
  select r.receiver,
         m.status,
         least(count(*), $2)                                  as messages,
         extract(epoch from clock_timestamp() - min(m.since)) as oldest
    from unnest($1::text[]) as r(receiver)
   cross join lateral (
           (select case when due_at > clock_timestamp() then 'waiting' else status end as status,
                   greatest(received_at, case when waits > 0 and waiting_since is null then due_at end) as since
              from inbox
             where receiver = r.receiver
               and status = 'pending'
               and first
             order by due_at, id
             limit $2)
           union all
           (select b.status,
                   greatest(b.received_at, case when f.waits > 0 and f.waiting_since is null then f.due_at end)
              from (select status, received_at, ordering_key
                      from inbox
                     where receiver = r.receiver
                       and status = 'pending'
                       and not first
                     order by ordering_key, id
                     limit $2) b
              left join inbox f
                on f.receiver = r.receiver
               and f.ordering_key = b.ordering_key
               and f.first)
           union all
           (select status,
                   greatest(received_at, case when waits > 0 and waiting_since is null then due_at end)
              from inbox
             where receiver = r.receiver
               and status = 'running'
             order by holder
             limit $2)
           union all
           (select status, received_at
              from inbox
             where receiver = r.receiver
               and status in ('dead', 'discarded')
               and status >= 'dead' and status <= 'dead' -- the order of status = 'dead' is also that of another index
             order by status, id
             limit $2)) m
   group by r.receiver, m.status
)
select 'payonce_inbox_messages', array[r.receiver, s.status], coalesce(f.messages, 0)::float8
  from unnest($1::text[]) as r(receiver)
 cross join unnest(array['pending', 'waiting', 'running', 'dead']) as s(status)
  left join found f using (receiver, status)
 union all
select 'payonce_inbox_oldest_age_seconds', array[r.receiver], coalesce(greatest(max(f.oldest), 0), 0)::float8
  from unnest($1::text[]) as r(receiver)
  left join found f
    on f.receiver = r.receiver
   and f.status <> 'dead'
 group by r.receiver`

// selectUnread counts the messages of a topic. One that was received is deleted.
const selectUnread = `
-- telemetry.selectUnread
select 'payonce_outbox_unread_messages', array[$2], (
         select count(*)
           from (select from outbox where topic = $2 limit $1) unread)::float8
 union all
select 'payonce_outbox_unread_age_seconds', array[$2], coalesce((
         select extract(epoch from clock_timestamp() - created_at)
           from outbox
          where topic = $2
          order by id
          limit 1), 0)::float8`

const selectAudits = `
-- telemetry.selectAudits
select g.name, array[a.scope], g.value::float8
  from (select scope, violated, finished_at
          from audit_results
         union all
        select 'recent', violated - superseded, audited_until
          from audit_recent) a
 cross join lateral (values
       ('payonce_audit_violations', a.violated),
       ('payonce_audit_finished_timestamp_seconds', extract(epoch from a.finished_at))) as g (name, value)`

const selectPaused = `
-- telemetry.selectPaused
select 'payonce_paused', array[what], count(p.what) filter (where p.paused)::float8
  from unnest(array_append($1::text[], 'merchant')) as all_of(what)
  left join pauses p using (what)
 group by what`
