package merchants_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/postgres/pgtest"
)

// counted counts reads. The first one waits until it is let go.
type counted struct {
	*postgres.DB

	reads atomic.Int64
	letGo chan struct{}
}

func (c *counted) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if c.reads.Add(1) == 1 {
		<-c.letGo
	}
	return c.DB.Query(ctx, sql, args...)
}

// TestDoorkeeper: each key opens what it opens alone, whoever asks at the same moment.
func TestDoorkeeper(t *testing.T) {
	t.Parallel()
	const merchant, times = 10, 4
	db := pgtest.Open(t)
	opens := map[string]string{} // key → merchant
	for i := range merchant {
		id := fmt.Sprint("merchant-", i)
		// All begin alike, so that each is a candidate of the others.
		keys := []string{fmt.Sprintf("sk_test_of_many_%030d", i), fmt.Sprintf("sk_test_of_many_%030d", 100+i)}
		register(t, db, merchants.Merchant{ID: id, FeeBasisPoints: int64(i)}, merchants.Webhook{}, keys...)
		for _, key := range keys {
			opens[key] = id
		}
		opens[fmt.Sprintf("sk_test_of_many_%030d", 200+i)] = "" // nobody's
	}
	q := &counted{DB: pgtest.As(t, db, postgres.RoleAPI), letGo: make(chan struct{})}
	d := merchants.NewDoorkeeper(q, 1) // so that no second read begins
	var all, asking sync.WaitGroup
	for key, want := range opens {
		for range times {
			asking.Add(1)
			all.Go(func() {
				asking.Done()
				m, err := d.Authenticate(t.Context(), key)
				if m.ID != want || errors.Is(err, merchants.ErrUnauthorized) != (want == "") || err != nil && want != "" {
					t.Errorf("%s opens %q, %v, want %q", key, m.ID, err, want)
				}
				if want != "" && (fmt.Sprint("merchant-", m.FeeBasisPoints) != want || !m.May(merchants.ChargesWrite)) {
					t.Errorf("%s opens %+v", key, m)
				}
			})
		}
	}
	asking.Wait()
	close(q.letGo)
	all.Wait()
	if n, questions := q.reads.Load(), len(opens)*times; n >= int64(questions) {
		t.Errorf("%d reads for %d keys", n, questions)
	}

	t.Run("a key that is revoked opens nothing from the next request on", func(t *testing.T) {
		t.Parallel()
		register(t, db, merchants.Merchant{ID: "acme"}, merchants.Webhook{}, key)
		if m, err := d.Authenticate(t.Context(), key); m.ID != "acme" || err != nil {
			t.Fatalf("it opens %q, %v", m.ID, err)
		}
		if _, err := db.Pool().Exec(t.Context(), `update api_keys set revoked_at = clock_timestamp() where merchant_id = 'acme'`); err != nil {
			t.Fatal(err)
		}
		if m, err := d.Authenticate(t.Context(), key); !errors.Is(err, merchants.ErrUnauthorized) || m.ID != "" {
			t.Errorf("it opens %q, %v", m.ID, err)
		}
	})

	t.Run("a database that cannot answer is not a wrong key", func(t *testing.T) {
		t.Parallel()
		closed := pgtest.As(t, db, postgres.RoleAPI)
		closed.Close()
		_, err := merchants.NewDoorkeeper(closed, 0).Authenticate(t.Context(), key)
		if err == nil || errors.Is(err, merchants.ErrUnauthorized) {
			t.Errorf("the error is %v", err)
		}
	})
}

// A session keeps the plan that it made while there were few keys. As they grow it
// reads what a request asks for and no more.
func TestAuthenticatingReadsNoMoreAsKeysGrow(t *testing.T) {
	t.Parallel()
	const (
		few  = `select * from generate_series(1, 30) n`
		many = `select * from generate_series(1001, 6000) n`
		add  = `
with n as (%s), m as (
  insert into merchants (merchant_id)
  select 'm' || n
    from n
)
insert into api_keys (key_hash, prefix, merchant_id, scopes)
select sha256(convert_to(key, 'UTF8')), left(key, 16), 'm' || n, '{admin}'
  from n,
       lateral (select 'sk_test_' || lpad(n::text, 8, '0') || repeat('x', 24) as key) k`
	)
	for name, before := range map[string][]string{
		"none":                {`analyze`},
		"thirty":              {fmt.Sprintf(add, few)},
		"thirty, and counted": {fmt.Sprintf(add, few), `update merchants set fee_basis_points = 1`, `analyze`},
	} {
		t.Run("where there were "+name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.Open(t)
			conn, err := db.Pool().Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Release()
			write := func(sql string) {
				t.Helper()
				if _, err := db.Pool().Exec(t.Context(), sql); err != nil {
					t.Fatal(err)
				}
			}
			for _, sql := range before {
				write(sql)
			}
			for range 10 {
				if _, err := merchants.Authenticate(t.Context(), conn, "sk_test_00000001xxxxxxxxxxxxxxxxxxxxxxxx"); err != nil && !errors.Is(err, merchants.ErrUnauthorized) {
					t.Fatal(err)
				}
			}
			write(fmt.Sprintf(add, many))
			tx, err := conn.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }() // it only reads
			read := func() (rows int) {
				t.Helper()
				err := tx.QueryRow(t.Context(), `
select sum(seq_tup_read + coalesce(idx_tup_fetch, 0))::int
  from pg_stat_xact_user_tables
 where relname in ('api_keys', 'merchants')`).Scan(&rows)
				if err != nil {
					t.Fatal(err)
				}
				return rows
			}
			earlier := read()
			m, err := merchants.Authenticate(t.Context(), tx, "sk_test_00005000xxxxxxxxxxxxxxxxxxxxxxxx")
			if err != nil || m.ID != "m5000" {
				t.Fatalf("it opens %q, %v", m.ID, err)
			}
			if rows := read() - earlier; rows != 2 {
				t.Errorf("%d rows are read, want the key and its merchant", rows)
			}
		})
	}
}
