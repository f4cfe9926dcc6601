package console

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"time"

	"github.com/payonce/payonce/internal/audit"
	"github.com/payonce/payonce/internal/loop"
)

// Action is a button of the crash lab or the guard lab. Only a demo has them.
type Action struct {
	Name  string // for Options.Do
	Group string // guard, or one of the crash lab
	Title string
	What  string // what it does
	Shows string // what to watch; of a guard, the invariants that turn red
}

// taken is what an action did, or how far it has come.
type taken struct {
	At            time.Time
	Title, Said   string
	Took          time.Duration
	InFlight, Bad bool
}

// finding is what the audit found after a guard was removed.
type finding struct {
	Guard, Removed, Fault, Charge string
	Violated                      []audit.Check
	Timelines                     []audit.Timeline
}

const mostTaken = 20 // actions on the page

// laboratory is the page of the lab.
type laboratory struct {
	Actions []Action
	Taken   []taken  // newest first, which may be in flight
	Found   *finding // the newest
}

func (c *Console) lab(*http.Request) (any, error) {
	c.labbing.Lock()
	defer c.labbing.Unlock()
	shown := c.labbed
	shown.Taken = slices.Clone(shown.Taken)
	return shown, nil
}

// note changes what the page of the lab shows from now on.
func (c *Console) note(change func(*laboratory)) {
	c.labbing.Lock()
	defer c.labbing.Unlock()
	change(&c.labbed)
	c.recent.Purge()
}

// act begins an action of the lab. A client that goes away does not leave it half done.
func (c *Console) act(r *http.Request) error {
	i := slices.IndexFunc(c.Actions, func(a Action) bool { return a.Name == r.PostFormValue("action") })
	switch {
	case c.Do == nil:
		return problem{http.StatusForbidden, "There is no lab here: it breaks things, and only payonce demo has one."}
	case i < 0:
		return problem{http.StatusNotFound, "There is no such action."}
	}
	busy := false
	c.note(func(l *laboratory) {
		if busy = len(l.Taken) > 0 && l.Taken[0].InFlight; !busy {
			l.Taken = slices.Insert(l.Taken[:min(len(l.Taken), mostTaken-1)], 0, taken{At: c.Now(), Title: c.Actions[i].Title, InFlight: true})
		}
	})
	if busy {
		return problem{http.StatusConflict, "One action is taken at a time: wait until the last one has ended."}
	}
	go c.take(context.WithoutCancel(r.Context()), c.Actions[i].Name)
	return nil
}

// take takes an action that is noted as in flight. Then another one may begin.
func (c *Console) take(ctx context.Context, name string) {
	var said string
	var found *finding
	err := loop.Safely(func() error {
		text, body, err := c.Do(ctx, name, func(line string) { c.note(func(l *laboratory) { l.Taken[0].Said = line }) })
		if said = text; err == nil && body != nil {
			err = json.Unmarshal(body, &found)
		}
		return err
	})
	c.note(func(l *laboratory) {
		t := &l.Taken[0]
		t.Said, t.Took, t.InFlight, t.Bad = said, c.Now().Sub(t.At), false, err != nil
		if t.Bad {
			t.Said = err.Error()
		}
		l.Found = cmp.Or(found, l.Found)
	})
}
