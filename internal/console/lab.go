package console

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"time"

	"github.com/payonce/payonce/internal/audit"
	"github.com/payonce/payonce/internal/loop"
)

// Lab is the crash lab and the guard lab. Only a demo has them.
type Lab interface {
	Actions() []Action
	// Do returns when the action has been taken, and says in a sentence what it did, and before how far
	// it has come. Of the guard lab it also returns what payonce demo --break prints as JSON.
	Do(ctx context.Context, name string, progress func(string)) (said string, finding []byte, err error)
}

// Action is a button of the lab.
type Action struct {
	Name  string // for Do
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
	NotRun                        string `json:"not_run"`
	Violated                      []audit.Check
	Timelines                     []audit.Timeline
}

const (
	mostTime  = 5 * time.Minute // of an action
	mostTaken = 20              // on the page
)

// laboratory is the page of the lab.
type laboratory struct {
	Actions []Action
	Taken   []taken  // newest first, which may be in flight
	Ended   int      // actions
	Found   *finding // the newest
}

func (c *Console) lab(*http.Request) (any, error) { return c.laboratory(), nil }

func (c *Console) laboratory() laboratory {
	c.labbing.Lock()
	defer c.labbing.Unlock()
	l := c.labbed
	l.Taken = slices.Clone(l.Taken)
	if c.Lab != nil {
		l.Actions = c.Lab.Actions()
	}
	return l
}

// note changes what the page of the lab shows.
func (c *Console) note(change func(*laboratory)) {
	c.labbing.Lock()
	defer c.labbing.Unlock()
	change(&c.labbed)
	c.live.hurry()
}

// act begins an action of the lab. A client that goes away does not leave it half done.
func (c *Console) act(_ http.ResponseWriter, r *http.Request, _ string) (string, error) {
	actions := c.laboratory().Actions
	i := slices.IndexFunc(actions, func(a Action) bool { return a.Name == r.PostForm.Get("action") })
	switch {
	case c.Lab == nil:
		return "", problem{http.StatusForbidden, "There is no lab here: it breaks things, and only payonce demo has one."}
	case i < 0:
		return "", problem{http.StatusNotFound, "There is no such action."}
	case !c.acting.TryLock():
		return "", problem{http.StatusConflict, "One action is taken at a time: wait until the last one has ended."}
	}
	c.note(func(l *laboratory) {
		l.Taken = slices.Insert(l.Taken[:min(len(l.Taken), mostTaken-1)], 0, taken{At: c.Now(), Title: actions[i].Title, InFlight: true})
	})
	go func() {
		defer c.acting.Unlock()
		c.take(context.WithoutCancel(r.Context()), actions[i].Name)
	}()
	return "/lab", nil
}

// take takes an action that is noted as in flight.
func (c *Console) take(ctx context.Context, name string) {
	ctx, cancel := context.WithTimeout(ctx, mostTime)
	defer cancel()
	var said string
	var text []byte
	var found finding
	err := loop.Safely(func() (err error) {
		said, text, err = c.Lab.Do(ctx, name, func(line string) { c.note(func(l *laboratory) { l.Taken[0].Said = line }) })
		return err
	})
	if text != nil && err == nil {
		err = json.Unmarshal(text, &found)
	}
	c.note(func(l *laboratory) {
		t := &l.Taken[0]
		t.Said, t.Took, t.InFlight = said, c.Now().Sub(t.At), false
		if t.Bad = err != nil; t.Bad {
			t.Said = err.Error()
		} else if text != nil {
			l.Found = &found
		}
		l.Ended++
	})
}
