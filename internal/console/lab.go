package console

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"time"
)

// Lab really breaks things, one at a time. Only a demo has one.
type Lab interface {
	Actions() []Action
	// Do returns when the action has been taken, and says in a sentence what it did.
	Do(ctx context.Context, name string) (said string, err error)
}

// Action is a button of the crash lab.
type Action struct {
	Name  string // for Do
	Group string
	Title string
	What  string // a sentence: what it does
	Shows string // a sentence: what to watch
}

// taken is what an action did.
type taken struct {
	At    time.Time
	Title string
	Said  string
	Bad   bool
	Took  time.Duration
}

// experiments are what the lab did, newest first.
type experiments struct {
	mu   sync.Mutex
	done []taken
}

const (
	mostTaken = 20
	mostTime  = 5 * time.Minute // of an action
)

// laboratory is the page of the crash lab.
type laboratory struct {
	There   bool
	Actions []Action
	Done    []taken
}

func (c *Console) lab(*http.Request) (any, error) {
	if c.Lab == nil {
		return laboratory{}, nil
	}
	c.experiments.mu.Lock()
	defer c.experiments.mu.Unlock()
	return laboratory{true, c.Lab.Actions(), slices.Clone(c.experiments.done)}, nil
}

var (
	errNoLab    = problem{http.StatusForbidden, "There is no crash lab here: it breaks things, and only payonce demo has one."}
	errNoAction = problem{http.StatusNotFound, "There is no such action."}
)

// act takes an action of the lab. A client that goes away does not leave it half done.
func (c *Console) act(w http.ResponseWriter, r *http.Request, _ string) (string, error) {
	if c.Lab == nil {
		return "", errNoLab
	}
	name, actions := r.PostForm.Get("action"), c.Lab.Actions()
	i := slices.IndexFunc(actions, func(a Action) bool { return a.Name == name })
	if i < 0 {
		return "", errNoAction
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), mostTime)
	defer cancel()
	_ = http.NewResponseController(w).SetWriteDeadline(time.Time{}) // where it cannot be set, the server's counts
	began := c.Now()
	said, err := c.Lab.Do(ctx, name)
	one := taken{began, actions[i].Title, said, err != nil, c.Now().Sub(began)}
	if err != nil {
		one.Said = err.Error()
	}
	c.experiments.mu.Lock()
	defer c.experiments.mu.Unlock()
	done := slices.Insert(c.experiments.done, 0, one)
	c.experiments.done = done[:min(len(done), mostTaken)]
	c.live.hurry()
	return "/lab", nil
}
