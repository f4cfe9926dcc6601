package postgres_test

import (
	"slices"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
)

// BenchmarkTenant reads a charge's events as the owner, who is held by no policy,
// and in turn with it as a tenant of the api. It reports the median of each and
// their ratio: both have the same noise.
func BenchmarkTenant(b *testing.B) {
	db := testdb.Open(b)
	_, err := db.Pool().Exec(b.Context(), `
insert into ledger_events
       (event_id, stream_id, version, type, schema_version, merchant_id, data, metadata, occurred_at)
select gen_random_uuid(), 'ch_' || n, v, 'x', 1, 'm' || n % 100, '{}', '{}', now()
  from generate_series(1, 2000) n, generate_series(1, 8) v;
analyze ledger_events`)
	if err != nil {
		b.Fatal(err)
	}
	read := func(q postgres.Querier) time.Duration {
		start := time.Now()
		rows, err := q.Query(b.Context(), `select data from ledger_events where stream_id = $1 order by version`, "ch_107")
		if err != nil {
			b.Fatal(err)
		}
		n := 0
		for rows.Next() {
			n++
		}
		if rows.Err() != nil || n != 8 {
			b.Fatalf("%d rows, %v", n, rows.Err())
		}
		return time.Since(start)
	}
	tenant := testdb.As(b, db, postgres.RoleAPI).Tenant("m7")
	var plain, named []time.Duration
	for b.Loop() {
		plain, named = append(plain, read(db)), append(named, read(tenant))
	}
	median := func(all []time.Duration) float64 {
		slices.Sort(all)
		return float64(all[len(all)/2].Microseconds())
	}
	b.ReportMetric(median(plain), "plain-µs")
	b.ReportMetric(median(named), "tenant-µs")
	b.ReportMetric(median(named)/median(plain), "ratio")
}
