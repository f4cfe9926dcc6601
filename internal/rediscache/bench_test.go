package rediscache_test

import (
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/idempotency"
)

// BenchmarkReplay is a storm of retries over a thousand keys, answered by the
// database and answered by a real Redis. Beside the time it tells what processor
// time a replay costs here and in each of the two servers.
func BenchmarkReplay(b *testing.B) {
	server := startServer(b)
	w := newWorld(b, server.url())
	const keys = 1000
	for i := range keys {
		record := w.store(b, numbered(i), fingerprint(i), theAnswer("ch_"+strconv.Itoa(i)), inAnHour())
		w.keep(b, numbered(i), record)
	}
	w.exec(b, `vacuum (analyze) idempotency_keys`)

	for _, source := range []struct {
		name   string
		answer func(i int) bool
	}{
		{"database", func(i int) bool {
			record, found, _, err := idempotency.Look(b.Context(), w.db, numbered(i))
			if err != nil || !found {
				return false
			}
			_, err = record.Replay(fingerprint(i))
			return err == nil
		}},
		{"cache", func(i int) bool {
			_, found, _ := idempotency.Recall(b.Context(), w.cache, numbered(i), fingerprint(i))
			return found
		}},
	} {
		for _, clients := range []int{1, 64} {
			b.Run(source.name+"/"+strconv.Itoa(clients), func(b *testing.B) {
				var next, missed atomic.Int64
				b.SetParallelism(max(1, clients/runtime.GOMAXPROCS(0)))
				replay := func() {
					if !source.answer(int(next.Add(1) % keys)) {
						missed.Add(1)
					}
				}
				inRedis, inPostgres, here := server.spent(b), w.spent(b), spent(b)
				if clients == 1 {
					for b.Loop() {
						replay()
					}
				} else {
					b.RunParallel(func(pb *testing.PB) {
						for pb.Next() {
							replay()
						}
					})
				}
				n := float64(next.Load())
				b.ReportMetric((spent(b)-here)*1e6/n, "client-µs/op")
				b.ReportMetric((server.spent(b)-inRedis)*1e6/n, "redis-µs/op")
				b.ReportMetric((w.spent(b)-inPostgres)*1e6/n, "postgres-µs/op")
				b.ReportMetric(float64(missed.Load())/n, "missed/op")
			})
		}
	}
}

// spent is the processor time of the server so far, in seconds.
func (s *server) spent(b *testing.B) float64 {
	b.Helper()
	info, err := redis.String(s.must(b, "INFO", "cpu"), nil)
	if err != nil {
		b.Fatal(err)
	}
	var sum float64
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name == "used_cpu_user" || name == "used_cpu_sys" {
			seconds, err := strconv.ParseFloat(value, 64)
			if err != nil {
				b.Fatal(err)
			}
			sum += seconds
		}
	}
	return sum
}

// spent is the processor time of the sessions of this database so far, in
// seconds; nothing where the system does not tell.
func (w *world) spent(b *testing.B) float64 {
	b.Helper()
	rows, err := w.db.Query(b.Context(), `
select pid
  from pg_stat_activity
 where datname = current_database()`)
	if err != nil {
		b.Fatal(err)
	}
	pids, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil {
		b.Fatal(err)
	}
	ticks := 0
	for _, pid := range pids {
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil {
			continue
		}
		_, fields, _ := strings.Cut(string(stat), ") ")
		for _, field := range strings.Fields(fields)[11:13] { // utime, stime
			n, err := strconv.Atoi(field)
			if err != nil {
				b.Fatal(err)
			}
			ticks += n
		}
	}
	return float64(ticks) / 100 // a tick is 10 ms
}

// spent is the processor time of this process so far, in seconds.
func spent(b *testing.B) float64 {
	b.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()).Seconds()
}
