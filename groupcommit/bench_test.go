package groupcommit_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/postgres/local"
	"github.com/payonce/payonce/internal/testdb"
)

// BenchmarkCommit compares a pool alone with a committer on the same pool: 64 goroutines
// that insert a row each, on a server that flushes each commit.
//
//	go test ./groupcommit -run '^$' -bench Commit -benchtime 3s
func BenchmarkCommit(b *testing.B) {
	server := testdb.Server(b, local.Options{Fsync: true})
	config, err := pgxpool.ParseConfig(server.URL("postgres"))
	testdb.Must(b, err)
	config.MaxConns = 20
	pool, err := pgxpool.NewWithConfig(b.Context(), config)
	testdb.Must(b, err)
	b.Cleanup(pool.Close)
	testdb.Exec(b, pool, `create table rows (id bigint generated always as identity primary key, n int)`)
	insert := groupcommit.Statement{SQL: `insert into rows (n) values ($1)`, ManyRows: `insert into rows (n) select unnest($1::int[])`}
	committer := groupcommit.New(pool, groupcommit.Options{Writes: groupcommit.NewStatements(insert)})
	for name, commit := range map[string]func(*pgx.Batch) error{
		"pool alone":    func(batch *pgx.Batch) error { return pool.SendBatch(b.Context(), batch).Close() },
		"group commits": func(batch *pgx.Batch) error { return committer.Commit(b.Context(), batch) },
	} {
		b.Run(name, func(b *testing.B) {
			b.SetParallelism(32) // for each of two processors
			b.RunParallel(func(p *testing.PB) {
				for p.Next() {
					batch := &pgx.Batch{}
					batch.Queue(insert.SQL, 1)
					if err := commit(batch); err != nil {
						b.Error(err)
					}
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "commits/s")
		})
	}
}
