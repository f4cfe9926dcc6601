package pgtest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testrun"
)

// Reused returns a pool on a database with every migration and the rows that the
// migrations insert, as Open does. Unlike Open, it may return a database that an
// earlier test of the process used: to empty one costs a tenth of making one.
//
// A test may do to it whatever it may do to a fresh database. A database whose
// schema has changed, that is gone, or in which a session still works when the
// test ends is dropped and not used again. A test must not close the pool, and
// must have closed its own sessions when it ends: a session whose connection was
// cut may commit later, so a test that cuts connections uses Open.
func Reused(tb testing.TB) *postgres.DB {
	tb.Helper()
	d, err := used.take(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), patience)
		defer cancel()
		if err := used.put(ctx, d); err != nil {
			tb.Error(err)
		}
	})
	return d.db
}

var used = usedDatabases{lent: map[*postgres.DB]*usedDatabase{}}

// usedDatabases are the databases of Reused.
type usedDatabases struct {
	mu    sync.Mutex
	idle  []*usedDatabase
	lent  map[*postgres.DB]*usedDatabase
	atEnd sync.Once
}

// keptConns is how many connections a pool may keep from one test to the next.
const keptConns = 2

type usedDatabase struct {
	name   string
	db     *postgres.DB
	acting []*acting
	schema string // fingerprint of the catalog, as the migrations left it
	empty  string // statements that restore the rows and the sequences
}

// acting is a pool that As made for a database, and which its next tests use.
type acting struct {
	db    *postgres.DB
	role  postgres.Role
	taken bool
}

func (u *usedDatabases) take(ctx context.Context) (d *usedDatabase, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if last := len(u.idle) - 1; last >= 0 {
		d, u.idle = u.idle[last], u.idle[:last]
	} else {
		u.mu.Unlock()
		d, err = u.create(ctx)
		u.mu.Lock()
	}
	if err == nil {
		u.lent[d.db] = d
	}
	return d, err
}

// as returns a pool on a database of Reused that acts as a role. It is nil for
// other databases.
func (u *usedDatabases) as(ctx context.Context, db *postgres.DB, role postgres.Role) (*postgres.DB, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	d := u.lent[db]
	if d == nil {
		return nil, nil
	}
	for _, a := range d.acting {
		if a.role == role && !a.taken {
			a.taken = true
			return a.db, nil
		}
	}
	opened, err := openAs(ctx, db, role)
	if err == nil {
		d.acting = append(d.acting, &acting{opened, role, true})
	}
	return opened, err
}

func (u *usedDatabases) create(ctx context.Context) (*usedDatabase, error) {
	s, err := shared()
	if err != nil {
		return nil, err
	}
	template, err := template()
	if err != nil {
		return nil, err
	}
	u.atEnd.Do(func() { testrun.AtEnd(u.close) })
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	d := &usedDatabase{name: "payonce_test_" + strings.ToLower(rand.Text())}
	if err := s.clone(ctx, d.name, template); err != nil {
		return nil, err
	}
	d.db, err = postgres.Open(ctx, s.url(d.name), postgres.Options{
		Application: "tests", StatementTimeout: time.Minute, AllowPlaintext: true, AllowUnsafeDurability: true,
	})
	if err != nil {
		return nil, errors.Join(err, s.drop(ctx, d.name))
	}
	if err := d.prepare(ctx); err != nil {
		return nil, errors.Join(err, d.drop(ctx))
	}
	return d, nil
}

// put empties a database for the next test, or drops it.
func (u *usedDatabases) put(ctx context.Context, d *usedDatabase) error {
	u.mu.Lock()
	delete(u.lent, d.db)
	u.mu.Unlock()
	if !d.unchanged(ctx) {
		return d.drop(ctx)
	}
	if _, err := d.db.Pool().Exec(ctx, d.empty, pgx.QueryExecModeSimpleProtocol); err != nil {
		return d.drop(ctx)
	}
	d.acting = slices.DeleteFunc(d.acting, func(a *acting) bool {
		a.taken = false
		keep := a.db.Pool().Stat().TotalConns() <= keptConns && a.db.Pool().Ping(ctx) == nil
		if !keep {
			a.db.Close()
		}
		return !keep
	})
	if d.db.Pool().Stat().TotalConns() > keptConns {
		d.db.Pool().Reset()
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.idle = append(u.idle, d)
	return nil
}

// close drops what is left when the tests have ended. The databases of a server
// of our own end with it.
func (u *usedDatabases) close() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var errs []error
	for _, d := range u.idle {
		d.close()
		if s, err := shared(); err != nil || s.idle == nil {
			errs = append(errs, err, d.drop(ctx))
		}
	}
	u.idle = nil
	return errors.Join(errs...)
}

func (d *usedDatabase) close() {
	for _, a := range d.acting {
		a.db.Close()
	}
	d.db.Close()
}

func (d *usedDatabase) drop(ctx context.Context) error {
	d.close()
	s, err := shared()
	if err != nil {
		return err
	}
	return s.drop(ctx, d.name)
}

// catalog changes with every change of a table, an index, a sequence, a
// constraint, a trigger, a policy, a function, a grant or the mark of the
// numbering, which cannot be restored.
const catalog = `
select coalesce(md5(string_agg(entry, ' ' order by entry)), '')
  from (
        select oid || ' ' || xmin from pg_class where relnamespace = 'public'::regnamespace
        union all
        select oid || ' ' || xmin from pg_constraint where connamespace = 'public'::regnamespace
        union all
        select oid || ' ' || xmin from pg_proc where pronamespace = 'public'::regnamespace
        union all
        select oid || ' ' || xmin from pg_trigger
        union all
        select oid || ' ' || xmin from pg_policy
        union all
        select written_in || ' ' || xmin from numbering_mark
       ) as entries(entry)`

const allIdle = `
select not exists (
        select 1
          from pg_stat_activity
         where datname = current_database()
           and pid <> pg_backend_pid()
           and state <> 'idle')`

// prepare notes the schema, keeps a copy of every row, and writes the statements
// that bring a database back to them.
func (d *usedDatabase) prepare(ctx context.Context) error {
	pool := d.db.Pool()
	if err := pool.QueryRow(ctx, catalog).Scan(&d.schema); err != nil {
		return fmt.Errorf("read the schema: %w", err)
	}
	rows, err := pool.Query(ctx, `
select relname::text
  from pg_class
 where relkind = 'r'
   and relnamespace = 'public'::regnamespace`)
	if err != nil {
		return fmt.Errorf("list the tables: %w", err)
	}
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("list the tables: %w", err)
	}
	if _, err := pool.Exec(ctx, `create schema fresh`); err != nil {
		return fmt.Errorf("make a schema for the copies: %w", err)
	}
	// No trigger, and so no foreign key, is in the way of the statements.
	var deletes, inserts []string
	for _, table := range tables {
		name := quote(table)
		tag, err := pool.Exec(ctx, "create table fresh."+name+" as table public."+name)
		if err != nil {
			return fmt.Errorf("copy the table %s: %w", table, err)
		}
		if tag.RowsAffected() == 0 {
			deletes = append(deletes, "delete from public."+name)
			continue
		}
		// A row that is as it was keeps its xmin, by which the numbering knows its server.
		deletes = append(deletes, fmt.Sprintf("delete from public.%[1]s t where t::text not in (select f::text from fresh.%[1]s f)", name))
		inserts = append(inserts, fmt.Sprintf("insert into public.%[1]s overriding system value "+
			"select * from fresh.%[1]s f where f::text not in (select t::text from public.%[1]s t)", name))
	}
	sequences, err := pool.Query(ctx, `
select format('select setval(%L, %s, %L)', format('%I.%I', schemaname, sequencename), coalesce(last_value, start_value), last_value is not null)
  from pg_sequences
 where schemaname = 'public'`)
	if err != nil {
		return fmt.Errorf("list the sequences: %w", err)
	}
	restarts, err := pgx.CollectRows(sequences, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("list the sequences: %w", err)
	}
	statements := []string{"begin", "set local session_replication_role = replica"}
	statements = append(append(append(append(statements, deletes...), inserts...), restarts...), "commit")
	d.empty = strings.Join(statements, "; ")
	return nil
}

// unchanged reports whether the database has the schema that it had, and no
// session works in it.
func (d *usedDatabase) unchanged(ctx context.Context) bool {
	var schema string
	if err := d.db.Pool().QueryRow(ctx, catalog).Scan(&schema); err != nil || schema != d.schema {
		return false
	}
	for range 100 { // a session that was closed may need a moment to end
		var idle bool
		if err := d.db.Pool().QueryRow(ctx, allIdle).Scan(&idle); err != nil {
			return false
		}
		if idle {
			return true
		}
		time.Sleep(10 * time.Millisecond) //nolint:forbidigo // otherwise the database is dropped, which is right too
	}
	return false
}
