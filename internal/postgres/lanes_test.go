package postgres_test

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/internal/postgres"
)

// lanesOf are lanes of the names of those who come. It notes who left together.
func lanesOf(n, enough int, longest time.Duration, most int) (l *postgres.Lanes[string], left func() [][]string) {
	var all [][]string
	l = postgres.OpenLanes(n, enough, longest,
		func(waiting []string) int { return min(len(waiting), most) },
		func(together []string) { all = append(all, together) })
	return l, func() [][]string { return all }
}

// pass lets time pass, and who wakes act.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// TestLanes runs on a clock of its own, which moves when everybody waits.
func TestLanes(t *testing.T) {
	t.Parallel()
	const (
		took    = 4 * time.Millisecond
		longest = 3 * took
		enough  = 4
		room    = 64
		many    = postgres.BusyMany // of whom the names stand for all
	)
	busy := func(l *postgres.Lanes[string]) { // both lanes are free
		l.Join("a", "b", "c")
		l.HandOver(1, 0)
		l.HandOver(many, took)
	}
	crowded := func(l *postgres.Lanes[string]) { // one who came in the midst of a stay is left
		busy(l)
		l.Join("d")
		pass(took / 2)
		l.Join("e", "f")
		l.HandOver(1, 0)
	}
	for name, act := range map[string]struct {
		lanes, most int
		do          func(l *postgres.Lanes[string])
		want        [][]string
	}{
		"who comes alone leaves at once": {2, room, func(l *postgres.Lanes[string]) {
			l.Join("a")
		}, [][]string{{"a"}}},
		"who comes while one is under way waits, although a lane is free": {2, room, func(l *postgres.Lanes[string]) {
			l.Join("a", "b", "c")
		}, [][]string{{"a"}}},
		"and those who wait leave together when it has come to its end": {2, room, func(l *postgres.Lanes[string]) {
			l.Join("a", "b", "c")
			l.HandOver(1, 0)
		}, [][]string{{"a"}, {"b", "c"}}},
		"enough of them take the other lane": {2, room, func(l *postgres.Lanes[string]) {
			l.Join("a", "b", "c", "d", "e", "f")
		}, [][]string{{"a"}, {"b", "c", "d", "e"}}},
		"not where there is none": {1, room, func(l *postgres.Lanes[string]) {
			l.Join("a", "b", "c", "d", "e", "f")
		}, [][]string{{"a"}}},
		"where many left a moment ago the next one stays": {2, room, func(l *postgres.Lanes[string]) {
			busy(l)
			pass(postgres.BusyTime - 1)
			l.Join("d")
		}, [][]string{{"a"}, {"b", "c"}}},
		"as long as it took those": {2, room, func(l *postgres.Lanes[string]) {
			busy(l)
			pass(postgres.BusyTime - 1)
			l.Join("d")
			pass(took - 1)
			l.Join("e")
			pass(1)
			l.Join("f")
		}, [][]string{{"a"}, {"b", "c"}, {"d", "e"}}},
		"also who waited for them": {2, room, func(l *postgres.Lanes[string]) {
			l.Join("a", "b", "c")
			l.HandOver(1, 0)
			l.Join("d")
			l.HandOver(many, took)
			pass(took - 1)
			l.Join("e")
			pass(1)
		}, [][]string{{"a"}, {"b", "c"}, {"d", "e"}}},
		"and no longer than anybody stays": {2, room, func(l *postgres.Lanes[string]) {
			l.Join("a", "b", "c")
			l.HandOver(1, 0)
			l.HandOver(many, 2*longest)
			l.Join("d")
			pass(longest)
		}, [][]string{{"a"}, {"b", "c"}, {"d"}}},
		"whoever else comes meanwhile": {2, room, func(l *postgres.Lanes[string]) {
			busy(l)
			l.Join("d")
			pass(took - 1)
			l.Join("e")
			l.Withdraw("e")
			pass(1)
		}, [][]string{{"a"}, {"b", "c"}, {"d"}}},
		"who comes when all who stayed withdrew stays as long": {2, room, func(l *postgres.Lanes[string]) {
			busy(l)
			l.Join("d")
			pass(took - 1)
			l.Withdraw("d")
			l.Join("e")
			pass(took - 1)
		}, [][]string{{"a"}, {"b", "c"}}},
		"later nobody does": {2, room, func(l *postgres.Lanes[string]) {
			busy(l)
			pass(postgres.BusyTime)
			l.Join("d")
		}, [][]string{{"a"}, {"b", "c"}, {"d"}}},
		"nor where few left": {2, room, func(l *postgres.Lanes[string]) {
			l.Join("a", "b", "c")
			l.HandOver(1, 0)
			l.HandOver(many-1, took)
			l.Join("d")
		}, [][]string{{"a"}, {"b", "c"}, {"d"}}},
		"few who come to their end change nothing": {2, room, func(l *postgres.Lanes[string]) {
			busy(l)
			l.Join("d")
			pass(took)
			l.Join("e")
			l.HandOver(1, longest)
			pass(took - 1)
			l.Join("f")
			pass(1)
		}, [][]string{{"a"}, {"b", "c"}, {"d"}, {"e", "f"}}},
		"also where they used a lane": {2, room, func(l *postgres.Lanes[string]) {
			l.Join("a", "b", "c")
			l.HandOver(1, 0)
			handOver := l.Use(many, postgres.SlowAfter)
			pass(took)
			handOver()
			l.Join("d")
			pass(took - 1)
			l.Join("e")
			pass(1)
		}, [][]string{{"a"}, {"b", "c"}, {"d", "e"}}},
		"not where no more may leave together": {1, 2, func(l *postgres.Lanes[string]) {
			l.Join("a", "b", "c", "d", "e", "f") // who waits is enough
			l.HandOver(1, 0)
			l.HandOver(many, took) // three wait
			l.HandOver(many, took) // one
		}, [][]string{{"a"}, {"b", "c"}, {"d", "e"}}},
		"or until enough are together": {2, room, func(l *postgres.Lanes[string]) {
			busy(l)
			l.Join("d", "e", "f", "g", "h")
		}, [][]string{{"a"}, {"b", "c"}, {"d", "e", "f", "g"}}},
		"and who comes behind those stays by himself": {2, room, func(l *postgres.Lanes[string]) {
			busy(l)
			l.Join("d")
			pass(took - 1)
			l.Join("e", "f", "g") // enough
			l.HandOver(3, 0)
			l.Join("h")
			pass(took - 1)
		}, [][]string{{"a"}, {"b", "c"}, {"d", "e", "f", "g"}}},
		"for whom there is no room waits for the next": {1, 2, func(l *postgres.Lanes[string]) {
			l.Join("a", "b", "c", "d")
			l.HandOver(1, 0)
		}, [][]string{{"a"}, {"b", "c"}}},
		"and is not forgotten": {1, 2, func(l *postgres.Lanes[string]) {
			l.Join("a", "b", "c", "d")
			l.HandOver(1, 0)
			l.HandOver(many, took)
			pass(took)
		}, [][]string{{"a"}, {"b", "c"}, {"d"}}},
		"who withdraws is not taken along": {1, room, func(l *postgres.Lanes[string]) {
			l.Join("a", "b", "c", "d")
			if !l.Withdraw("c") || l.Withdraw("a") {
				t.Error("c waited, and a had left")
			}
			l.HandOver(1, 0)
		}, [][]string{{"a"}, {"b", "d"}}},
		"a lane that is given up early is another one's": {1, room, func(l *postgres.Lanes[string]) {
			l.Join("a", "b", "c")
			l.HandOver(1, 0) // of a, who is under way still
			l.Join("d")
			l.HandOver(2, took)
		}, [][]string{{"a"}, {"b", "c"}, {"d"}}},
		"behind a slow one nobody waits while a lane is free": {2, room, func(l *postgres.Lanes[string]) {
			l.Join("a")
			handOver := l.Use(1, time.Minute)
			l.Join("b", "c")
			pass(postgres.SlowAfter)
			l.HandOver(2, took) // of both
			l.Join("d")
			l.Join("e")
			handOver()
		}, [][]string{{"a"}, {"b", "c"}, {"d"}}},
		"and none is slow that has handed over": {2, room, func(l *postgres.Lanes[string]) {
			l.Join("a")
			handOver := l.Use(1, postgres.SlowAfter+time.Millisecond)
			pass(postgres.SlowAfter + time.Millisecond)
			handOver()
			l.Join("b")
			_ = l.Use(1, time.Minute)
			l.Join("c")
			pass(postgres.SlowAfter - 1)
		}, [][]string{{"a"}, {"b"}}},
		"busy again behind each of them, for as long as the last took": {2, room, func(l *postgres.Lanes[string]) {
			l.Join("a", "b", "c", "d", "e") // both lanes
			l.HandOver(many, longest)
			pass(postgres.BusyTime - 1)
			l.HandOver(many, took)
			pass(postgres.BusyTime - 1)
			l.Join("f")
			pass(took - 1)
			l.Join("g")
			pass(1)
		}, [][]string{{"a"}, {"b", "c", "d", "e"}, {"f", "g"}}},
		"also longer than the one before": {2, room, func(l *postgres.Lanes[string]) {
			l.Join("a", "b", "c", "d", "e")
			l.HandOver(many, took)
			l.HandOver(many, 2*took)
			l.Join("f")
			pass(took)
		}, [][]string{{"a"}, {"b", "c", "d", "e"}}},
		"few do not make busy times longer": {2, room, func(l *postgres.Lanes[string]) {
			busy(l)
			l.Join("d")
			pass(postgres.BusyTime - 1)
			l.HandOver(1, 0)
			pass(1)
			l.Join("e")
		}, [][]string{{"a"}, {"b", "c"}, {"d"}, {"e"}}},
		"nor the stay": {2, room, func(l *postgres.Lanes[string]) {
			busy(l)
			l.Join("d")
			pass(took)
			l.Join("e")
			pass(took / 2)
			l.HandOver(1, 0)
			pass(took / 2)
		}, [][]string{{"a"}, {"b", "c"}, {"d"}, {"e"}}},
		"behind many who stays stays anew": {2, room, func(l *postgres.Lanes[string]) {
			busy(l)
			l.Join("d", "e", "f", "g", "h")
			pass(took - 1)
			l.HandOver(many, took)
			pass(took - 1)
		}, [][]string{{"a"}, {"b", "c"}, {"d", "e", "f", "g"}}},
		"also if the other lane is used": {2, room, func(l *postgres.Lanes[string]) {
			l.Join("a", "b", "c", "d", "e", "f")
			l.HandOver(many, took)
			l.HandOver(1, 0)
			pass(took - 1)
		}, [][]string{{"a"}, {"b", "c", "d", "e"}}},
		"a lane that is had back late makes nobody stay": {2, room, func(l *postgres.Lanes[string]) {
			l.Join("a")
			handOver := l.Use(many, took)
			pass(took)
			handOver()
			l.Join("b")
		}, [][]string{{"a"}, {"b"}}},
		"enough are those who wait, not those who fit": {2, 2, func(l *postgres.Lanes[string]) {
			l.Join("a", "b", "c", "d", "e")
		}, [][]string{{"a"}, {"b", "c"}}},
		"who fill a transaction are not enough for the second lane": {2, 2, func(l *postgres.Lanes[string]) {
			l.Join("a", "b", "c", "d")
		}, [][]string{{"a"}}},
		"who waits leaves when the first becomes slow": {2, room, func(l *postgres.Lanes[string]) {
			l.Join("a")
			_ = l.Use(1, time.Minute)
			l.Join("b")
			pass(postgres.SlowAfter)
		}, [][]string{{"a"}, {"b"}}},
		"beside a slow one they stay, too": {2, room, func(l *postgres.Lanes[string]) {
			l.Join("a")
			_ = l.Use(1, time.Minute)
			pass(postgres.SlowAfter)
			l.Join("b")
			l.HandOver(many, took)
			l.Join("c")
			pass(took - 1)
		}, [][]string{{"a"}, {"b"}}},
		"who withdraws ends no stay": {2, room, func(l *postgres.Lanes[string]) {
			busy(l)
			l.Join("d", "e")
			pass(took - 1)
			l.Withdraw("d")
			synctest.Wait()
		}, [][]string{{"a"}, {"b", "c"}}},
		"nor begins one": {2, room, func(l *postgres.Lanes[string]) {
			busy(l)
			l.Join("d", "e")
			pass(took - 1)
			l.Withdraw("d")
			pass(1)
		}, [][]string{{"a"}, {"b", "c"}, {"e"}}},
		"for whom there was no room stays on": {2, 2, crowded, [][]string{{"a"}, {"b", "c"}, {"d", "e"}}},
		"as long as he would have stayed": {2, 2, func(l *postgres.Lanes[string]) {
			crowded(l)
			pass(took / 2)
		}, [][]string{{"a"}, {"b", "c"}, {"d", "e"}, {"f"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l, left := lanesOf(act.lanes, enough, longest, act.most)
				synctest.Wait()
				act.do(l)
				if diff := cmp.Diff(act.want, left()); diff != "" {
					t.Errorf("who left together (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// traveler is one of many at once.
type traveler struct{ told chan []*traveler }

// TestLanesLeaveNobodyBehind has many come, wait, withdraw, lead and stay too long, at
// random. Were one of them forgotten, all would wait in the end, which synctest tells.
func TestLanesLeaveNobodyBehind(t *testing.T) {
	t.Parallel()
	const most, comers, times = 8, 40, 50
	for n := 1; n <= 3; n++ {
		for _, laneTime := range []time.Duration{0, 300 * time.Microsecond, time.Second} {
			synctest.Test(t, func(t *testing.T) {
				l := postgres.OpenLanes(n, 4, 10*time.Millisecond,
					func(waiting []*traveler) int { return 1 + rand.N(min(len(waiting), most)) }, //nolint:gosec // no secret
					func(together []*traveler) { together[0].told <- together })
				var using, ended, withdrawn atomic.Int64
				travel := func(together []*traveler) {
					defer l.Use(len(together), laneTime)()
					if k := using.Add(1); laneTime == time.Second && k > int64(n) {
						t.Errorf("%d of %d lanes are used", k, n)
					}
					<-time.After(rand.N(2 * postgres.SlowAfter)) //nolint:gosec // no secret
					using.Add(-1)
					for _, w := range together {
						w.told <- nil
					}
				}
				var all sync.WaitGroup
				for range comers {
					all.Go(func() {
						for range times {
							w := &traveler{make(chan []*traveler, 1)}
							l.Join(w)
							var patience <-chan time.Time // most have it for ever
							if rand.N(4) == 0 {           //nolint:gosec // no secret
								patience = time.After(rand.N(20 * postgres.SlowAfter)) //nolint:gosec // no secret
							}
							select {
							case together := <-w.told:
								if together != nil {
									travel(together)
									<-w.told
								}
								ended.Add(1)
							case <-patience:
								if l.Withdraw(w) {
									withdrawn.Add(1)
									continue
								}
								if together := <-w.told; together != nil {
									travel(together)
									<-w.told
								}
								ended.Add(1)
							}
						}
					})
				}
				all.Wait()
				synctest.Wait()
				if got := ended.Load() + withdrawn.Load(); got != comers*times || l.Unused() != n || l.Pending() != 0 {
					t.Errorf("of %d %d ended, and %d withdrew; %d of %d lanes are free, and %d wait",
						comers*times, ended.Load(), withdrawn.Load(), l.Unused(), n, l.Pending())
				}
			})
		}
	}
}
