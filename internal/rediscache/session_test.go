package rediscache_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/postgres/pgtest"
)

// TestSession: the cache looks at the database through a connection of its own.
func TestSession(t *testing.T) {
	t.Parallel()

	t.Run("answers are found while requests have taken all connections", func(t *testing.T) {
		t.Parallel()
		w := newWorldAlone(t, newFake(t).url())
		record := w.kept(t, theKey(), "ch_1")
		conn, err := w.db.Pool().Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Release()
		for range 2 { // the second time with a new session
			w.ahead.Add(int64(61 * time.Second))
			w.wantFound(t, theKey(), record)
		}
	})

	t.Run("and again after the connection was lost", func(t *testing.T) {
		t.Parallel()
		w := newWorldAlone(t, newFake(t).url())
		record := w.kept(t, theKey(), "ch_1")
		w.exec(t, `
select pg_terminate_backend(pid)
  from pg_stat_activity
 where datname = current_database()
   and pid <> pg_backend_pid()`)
		await.True(t, "the loss is logged", func() bool { return w.said.count("database") > 0 })
		w.wantFound(t, theKey(), record)
	})

	t.Run("it is one, made anew every minute, and closed at the end", func(t *testing.T) {
		t.Parallel()
		w := newWorldAlone(t, newFake(t).url())
		w.kept(t, theKey(), "ch_1")
		first := w.sessions(t)
		if len(first) != 1 {
			t.Fatalf("there are the sessions %v", first)
		}
		w.ahead.Add(int64(61 * time.Second))
		await.True(t, "there is another", func() bool {
			second := w.sessions(t)
			return len(second) == 1 && second[0] != first[0]
		})
		w.cache.Close()
		await.True(t, "there is none", func() bool { return len(w.sessions(t)) == 0 })
	})
}

// newWorldAlone is a world whose pool has one connection.
func newWorldAlone(t *testing.T, url string) *world {
	t.Helper()
	db, err := postgres.Open(t.Context(), pgtest.URL(t), postgres.Options{
		Application: t.Name(), MaxConns: 1, AllowPlaintext: true, AllowUnsafeDurability: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	return opened(t, &world{db: db}, url)
}

// sessions are the server processes that read the state of the database.
func (w *world) sessions(t *testing.T) []int {
	t.Helper()
	rows, err := w.db.Query(t.Context(), `
select pid
  from pg_stat_activity
 where datname = current_database()
   and query like '%from cache_secret%'
   and query not like '%pg_stat_activity%'`)
	if err != nil {
		t.Fatal(err)
	}
	pids, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil {
		t.Fatal(err)
	}
	return pids
}
