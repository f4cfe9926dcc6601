package console

import (
	"log/slog"
	"testing"
	"time"
)

// TestFollow_takeovers sees each message of a worker that died move, also where it moves between two ticks.
func TestFollow_takeovers(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	for name, states := range map[string][]string{"seen in between": {"a", "a", "b"}, "between two ticks": {"a", "b"}, "long after": {"a", "a", "", "", "b"}} {
		l := newLive(slog.New(slog.DiscardHandler), time.Now, func(string, any) []byte { return nil })
		var last *tick
		for i, holder := range states {
			f := facts{At: at.Add(time.Duration(i) * 10 * time.Second), Sessions: map[string]int{"payonce-worker b": 1}}
			if i == 0 {
				f.Sessions["payonce-worker a"] = 1
			}
			m := message{ID: 7, OrderingKey: "ch_1", Status: "running", Holder: holder}
			if holder != "" {
				f.Open, f.Followed = []message{m}, []message{m}
			}
			last = &tick{facts: f, Programs: programsOf(f, l.seen)}
			l.follow(last)
		}
		want := float64(len(states)-1) * 10
		if len(last.Takeovers) != 1 || last.Takeovers[0].Next != "b" || last.Takeovers[0].After.Seconds() != want {
			t.Errorf("%s: %+v, want b after %v s", name, last.Takeovers, want)
		}
	}
}
