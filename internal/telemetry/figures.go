package telemetry

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/payonce/payonce/internal/postgres"
)

// Bounds of what scrapes may cost the database.
const (
	figuresFor     = 10 * time.Second // for which they are told again
	figuresTimeout = 3 * time.Second
)

// figures are gauges that the database alone knows. They are read when somebody
// asks, at most every ten seconds, by one at a time; those who ask meanwhile wait
// for the same answer. If they cannot be read, all that is told is
// payonce_figures_up 0, for as long.
type figures struct {
	db        postgres.Querier
	now       func() time.Time
	receivers []string // of whom it is told, too, that nothing waits
	restored  Restored

	up, messages, oldest, unread, unreadAge, bytes, horizon, snapshot, slotBytes, slotXmin, foreign *prometheus.Desc
	auditViolated, auditChecked, auditFinished                                                      *prometheus.Desc

	timeout time.Duration // of a read: figuresTimeout, except in tests
	most    int           // messages that are counted: countedAtMost, except in tests

	mu   sync.Mutex
	read time.Time
	told []prometheus.Metric
	err  error // of the last read, which is logged once
	warn func(error)
}

func newFigures(c Config, db postgres.Querier, receivers []string, restored Restored) *figures {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return &figures{
		db: db, now: c.Now, receivers: receivers, restored: restored,
		timeout: cmp.Or(c.figuresTimeout, figuresTimeout), most: cmp.Or(c.countedAtMost, countedAtMost),
		warn:      func(err error) { c.Log.Warn("figures not read", "error", err) },
		up:        desc("payonce_figures_up", "Whether the gauges that the database knows could be read."),
		messages:  desc("payonce_inbox_messages", "Messages in the inbox that are not finished, by receiver and status; dead is parked. 100000 says at least so many.", "receiver", "status"),
		oldest:    desc("payonce_inbox_oldest_age_seconds", "Time since the oldest message was received that is pending or running.", "receiver"),
		unread:    desc("payonce_outbox_unread_messages", "Messages that a consumer group has not received. 100000 says at least so many.", "topic", "consumer_group"),
		unreadAge: desc("payonce_outbox_unread_age_seconds", "Time since the oldest of them was committed.", "topic", "consumer_group"),
		bytes:     desc("payonce_store_bytes", "Size of a table with its indexes.", "table"),
		horizon:   desc("payonce_horizon_held_seconds", "Time for which the oldest writing transaction has held back what was committed after it."),
		snapshot:  desc("payonce_snapshot_held_seconds", "Age of the oldest transaction whose snapshot keeps vacuum from removing dead rows of this database; prepared transactions included."),
		slotBytes: desc("payonce_replication_slot_retained_bytes", "Write-ahead log that the server keeps for a replication slot.", "slot"),
		slotXmin:  desc("payonce_replication_slot_held_transactions", "Transactions since the oldest one whose dead rows a replication slot keeps from vacuum, of tables or of the catalog.", "slot"),

		foreign:       desc("payonce_restored_unrepaired", "Whether the tables name transactions of another server: 1 after a restore, until it is repaired."),
		auditViolated: desc("payonce_audit_violations", "Violations that the last audit found, by scope.", "scope"),
		auditChecked:  desc("payonce_audit_checked", "Cases that the last audit looked at, by scope.", "scope"),
		auditFinished: desc("payonce_audit_finished_timestamp_seconds", "When the last audit ended, by scope.", "scope"),
	}
}

// Describe tells which metrics there are.
func (f *figures) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		f.up, f.messages, f.oldest, f.unread, f.unreadAge, f.bytes, f.horizon, f.snapshot, f.slotBytes, f.slotXmin, f.foreign, f.auditViolated, f.auditChecked, f.auditFinished,
	} {
		to <- d
	}
}

// Collect tells what they are, or were a moment ago.
func (f *figures) Collect(to chan<- prometheus.Metric) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now := f.now(); f.read.IsZero() || now.Sub(f.read) >= figuresFor {
		f.refresh()
		f.read = f.now()
	}
	for _, m := range f.told {
		to <- m
	}
}

func (f *figures) refresh() {
	ctx, cancel := context.WithTimeout(context.Background(), f.timeout) // a scrape that is given up serves the next one
	defer cancel()
	f.told = nil
	var err error
	for _, look := range []func(context.Context) error{f.lookInbox, f.lookOutbox, f.lookStore, f.lookAudit, f.lookHorizon, f.lookSlots, f.lookRestored} {
		if err = look(ctx); err != nil {
			break
		}
	}
	if err != nil {
		f.told = []prometheus.Metric{gauge(f.up, 0)}
		if f.err == nil {
			f.warn(err)
		}
	} else {
		f.told = append(f.told, gauge(f.up, 1))
	}
	f.err = err
}

func (f *figures) tell(d *prometheus.Desc, value float64, labels ...string) {
	f.told = append(f.told, gauge(d, value, labels...))
}

// countedAtMost bounds what is counted, so that a backlog of millions, of all
// things, does not keep the gauges from being read.
const countedAtMost = 100_000

// Open and parked messages are found by partial indexes, so what is done does not
// count. Of a longer queue those of the lowest keys are looked at: charges are named
// by the time at which they came, so the oldest are among them.
const selectBacklog = `
select r.receiver,
       m.status,
       count(*)                                                         as messages,
       extract(epoch from clock_timestamp() - min(m.received_at))::float8 as oldest
  from unnest($1::text[]) as r(receiver)
 cross join lateral (
         (select open.status,
                 open.received_at
            from inbox open
           where open.receiver = r.receiver
             and open.status in ('pending', 'running')
           order by open.ordering_key, open.id
           limit $2)
         union all
         (select parked.status,
                 parked.received_at
            from inbox parked
           where parked.receiver = r.receiver
             and parked.status = 'dead'
           order by parked.ordering_key, parked.id
           limit $2)) m
 group by r.receiver, m.status`

func (f *figures) lookInbox(ctx context.Context) error {
	rows, err := f.db.Query(ctx, selectBacklog, f.receivers, f.most)
	if err != nil {
		return fmt.Errorf("look at the inbox: %w", err)
	}
	type standing struct{ receiver, status string }
	found, oldest := map[standing]float64{}, map[string]float64{}
	for _, receiver := range f.receivers {
		oldest[receiver] = 0
		for _, status := range []string{"pending", "running", "dead"} {
			found[standing{receiver, status}] = 0
		}
	}
	var at standing
	var messages, age float64
	_, err = pgx.ForEachRow(rows, []any{&at.receiver, &at.status, &messages, &age}, func() error {
		found[at] = messages
		if at.status != "dead" {
			oldest[at.receiver] = max(oldest[at.receiver], age)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("look at the inbox: %w", err)
	}
	for at, messages := range found {
		f.tell(f.messages, messages, at.receiver, at.status)
	}
	for receiver, age := range oldest {
		f.tell(f.oldest, age, receiver)
	}
	return nil
}

// Of each consumer group, and always of the one that feeds the inbox: where it has
// never read, all is unread.
const selectUnread = `
select o.topic,
       o.consumer_group,
       (select count(*)
          from (select
                  from outbox m
                 where m.topic = o.topic
                   and (m.transaction_id, m."offset") > (o.transaction_id, o."offset")
                 limit $1) unread)                                              as messages,
       coalesce((select extract(epoch from clock_timestamp() - m.created_at)
                   from outbox m
                  where m.topic = o.topic
                    and (m.transaction_id, m."offset") > (o.transaction_id, o."offset")
                  order by m.transaction_id, m."offset"
                  limit 1), 0)::float8                                         as age
  from (select topic, consumer_group, transaction_id, "offset"
          from outbox_offsets
         union all
        select t.topic, 'inbox', '0'::xid8, 0
          from unnest(array['charges', 'outcomes']) as t (topic)
         where not exists (
                 select
                   from outbox_offsets f
                  where f.topic = t.topic
                    and f.consumer_group = 'inbox')) o`

func (f *figures) lookOutbox(ctx context.Context) error {
	rows, err := f.db.Query(ctx, selectUnread, f.most)
	if err != nil {
		return fmt.Errorf("look at the outbox: %w", err)
	}
	var topic, group string
	var messages, age float64
	_, err = pgx.ForEachRow(rows, []any{&topic, &group, &messages, &age}, func() error {
		f.tell(f.unread, messages, topic, group)
		f.tell(f.unreadAge, age, topic, group)
		return nil
	})
	if err != nil {
		return fmt.Errorf("look at the outbox: %w", err)
	}
	return nil
}

const selectSizes = `
select relname::text                              as name,
       pg_total_relation_size(oid)::float8        as bytes
  from pg_class
 where relkind = 'r'
   and relnamespace = 'public'::regnamespace`

func (f *figures) lookStore(ctx context.Context) error {
	rows, err := f.db.Query(ctx, selectSizes)
	if err != nil {
		return fmt.Errorf("look at the sizes of tables: %w", err)
	}
	var table string
	var bytes float64
	_, err = pgx.ForEachRow(rows, []any{&table, &bytes}, func() error {
		f.tell(f.bytes, bytes, table)
		return nil
	})
	if err != nil {
		return fmt.Errorf("look at the sizes of tables: %w", err)
	}
	return nil
}

const selectAudits = `
select scope,
       checked::float8,
       violated::float8,
       extract(epoch from finished_at)::float8 as finished
  from audit_results`

func (f *figures) lookAudit(ctx context.Context) error {
	rows, err := f.db.Query(ctx, selectAudits)
	if err != nil {
		return fmt.Errorf("look at the last audit: %w", err)
	}
	var scope string
	var checked, violated, finished float64
	_, err = pgx.ForEachRow(rows, []any{&scope, &checked, &violated, &finished}, func() error {
		f.tell(f.auditChecked, checked, scope)
		f.tell(f.auditViolated, violated, scope)
		f.tell(f.auditFinished, finished, scope)
		return nil
	})
	if err != nil {
		return fmt.Errorf("look at the last audit: %w", err)
	}
	return nil
}

const selectHorizon = `
select horizon_held(),
       snapshot_held()`

func (f *figures) lookHorizon(ctx context.Context) error {
	var writing, snapshot float64
	if err := f.db.QueryRow(ctx, selectHorizon).Scan(&writing, &snapshot); err != nil {
		return fmt.Errorf("read the age of the oldest transaction: %w", err)
	}
	f.tell(f.horizon, writing)
	f.tell(f.snapshot, snapshot)
	return nil
}

// A slot that never reserved log, or that lost it, keeps none. The end of the log is
// what a standby received, where the server is one.
const selectSlots = `
select slot_name::text,
       coalesce(pg_wal_lsn_diff(case
                                  when pg_is_in_recovery() then pg_last_wal_receive_lsn()
                                  else pg_current_wal_lsn()
                                end, restart_lsn), 0)::float8    as bytes,
       coalesce(greatest(age(xmin), age(catalog_xmin)), 0)::float8 as transactions
  from pg_replication_slots`

func (f *figures) lookSlots(ctx context.Context) error {
	rows, err := f.db.Query(ctx, selectSlots)
	if err != nil {
		return fmt.Errorf("read the replication slots: %w", err)
	}
	var slot string
	var bytes, transactions float64
	_, err = pgx.ForEachRow(rows, []any{&slot, &bytes, &transactions}, func() error {
		f.tell(f.slotBytes, bytes, slot)
		f.tell(f.slotXmin, transactions, slot)
		return nil
	})
	if err != nil {
		return fmt.Errorf("read the replication slots: %w", err)
	}
	return nil
}

// lookRestored asks as the worker does before it calls itself ready, so that the
// alert and /readyz say the same.
func (f *figures) lookRestored(ctx context.Context) error {
	restored, err := f.restored(ctx, f.db)
	if err != nil {
		return fmt.Errorf("look whose transactions the tables name: %w", err)
	}
	value := 0.0
	if restored {
		value = 1
	}
	f.tell(f.foreign, value)
	return nil
}
