package postgres_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/internal/postgres"
)

// lanesOf are lanes of the names of those who come. It notes who left together.
func lanesOf(n, enough int, spacing time.Duration, most int) (l *postgres.Lanes[string], left func() [][]string) {
	var all [][]string
	l = postgres.OpenLanes(n, enough, spacing,
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
		spacing = 3 * time.Millisecond
		enough  = 4
		many    = 64
	)
	for name, act := range map[string]struct {
		lanes, most int
		do          func(l *postgres.Lanes[string])
		want        [][]string
	}{
		"who comes alone leaves at once": {2, many, func(l *postgres.Lanes[string]) {
			l.Join("a")
		}, [][]string{{"a"}}},
		"who comes while one is under way waits, although a lane is free": {2, many, func(l *postgres.Lanes[string]) {
			l.Join("a", "b", "c")
		}, [][]string{{"a"}}},
		"and those who wait leave together when it has come to its end": {2, many, func(l *postgres.Lanes[string]) {
			l.Join("a", "b", "c")
			l.HandOver(1)
		}, [][]string{{"a"}, {"b", "c"}}},
		"enough of them take the other lane": {2, many, func(l *postgres.Lanes[string]) {
			l.Join("a", "b", "c", "d", "e", "f")
		}, [][]string{{"a"}, {"b", "c", "d", "e"}}},
		"not where there is none": {1, many, func(l *postgres.Lanes[string]) {
			l.Join("a", "b", "c", "d", "e", "f")
		}, [][]string{{"a"}}},
		"behind company the next one stays": {2, many, func(l *postgres.Lanes[string]) {
			l.Join("a", "b", "c")
			l.HandOver(1)
			l.HandOver(2)
			pass(spacing - 1)
			l.Join("d")
		}, [][]string{{"a"}, {"b", "c"}}},
		"for a spacing": {2, many, func(l *postgres.Lanes[string]) {
			l.Join("a", "b", "c")
			l.HandOver(1)
			l.HandOver(2)
			l.Join("d")
			pass(spacing)
		}, [][]string{{"a"}, {"b", "c"}, {"d"}}},
		"or until enough are together": {2, many, func(l *postgres.Lanes[string]) {
			l.Join("a", "b", "c")
			l.HandOver(1)
			l.HandOver(2)
			l.Join("d", "e", "f", "g", "h")
		}, [][]string{{"a"}, {"b", "c"}, {"d", "e", "f", "g"}}},
		"and behind that one, which was alone, nobody does": {2, many, func(l *postgres.Lanes[string]) {
			l.Join("a", "b", "c")
			l.HandOver(1)
			l.HandOver(2)
			l.Join("d")
			pass(spacing)
			l.Join("e")
			l.HandOver(1)
		}, [][]string{{"a"}, {"b", "c"}, {"d"}, {"e"}}},
		"the spacing is behind the last of two": {2, many, func(l *postgres.Lanes[string]) {
			l.Join("a", "b", "c", "d", "e")
			l.HandOver(1)
			l.HandOver(4)
			pass(spacing - 1)
			l.Join("f", "g", "h", "i") // enough
			l.HandOver(4)
			l.Join("j")
			pass(spacing - 1)
		}, [][]string{{"a"}, {"b", "c", "d", "e"}, {"f", "g", "h", "i"}}},
		"for whom there is no room waits for the next": {1, 2, func(l *postgres.Lanes[string]) {
			l.Join("a", "b", "c", "d")
			l.HandOver(1)
		}, [][]string{{"a"}, {"b", "c"}}},
		"and is not forgotten": {1, 2, func(l *postgres.Lanes[string]) {
			l.Join("a", "b", "c", "d")
			l.HandOver(1)
			l.HandOver(2)
			pass(spacing)
		}, [][]string{{"a"}, {"b", "c"}, {"d"}}},
		"who withdraws is not taken along": {1, many, func(l *postgres.Lanes[string]) {
			l.Join("a", "b", "c", "d")
			if !l.Withdraw("c") || l.Withdraw("a") {
				t.Error("c waited, and a had left")
			}
			l.HandOver(1)
		}, [][]string{{"a"}, {"b", "d"}}},
		"a lane that is given up early is another one's": {1, many, func(l *postgres.Lanes[string]) {
			l.Join("a", "b", "c")
			l.HandOver(1) // of a, who is under way still
			l.Join("d")
			l.HandOver(2)
			pass(spacing)
		}, [][]string{{"a"}, {"b", "c"}, {"d"}}},
		"behind a slow one nobody waits while a lane is free": {2, many, func(l *postgres.Lanes[string]) {
			l.Join("a")
			handOver := l.Use(1, time.Minute)
			l.Join("b", "c")
			pass(postgres.SlowAfter)
			l.HandOver(2) // of both
			pass(spacing)
			l.Join("d")
			l.Join("e")
			handOver()
		}, [][]string{{"a"}, {"b", "c"}, {"d"}}},
		"and none is slow that has handed over": {2, many, func(l *postgres.Lanes[string]) {
			l.Join("a")
			handOver := l.Use(1, postgres.SlowAfter+time.Millisecond)
			pass(postgres.SlowAfter + time.Millisecond)
			handOver()
			l.Join("b")
			_ = l.Use(1, time.Minute)
			l.Join("c")
			pass(postgres.SlowAfter - 1)
		}, [][]string{{"a"}, {"b"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l, left := lanesOf(act.lanes, enough, spacing, act.most)
				synctest.Wait()
				act.do(l)
				if diff := cmp.Diff(act.want, left()); diff != "" {
					t.Errorf("who left together (-want +got):\n%s", diff)
				}
			})
		})
	}
}
