package crash

import "sync/atomic"

// Watch is where the instruments before one victim find the plan of its present
// life. A connection stays with the plan under which it began, so what a dead
// life had sent is not taken for the next one's.
type Watch struct{ plan atomic.Pointer[Plan] }

// NewWatch returns a watch with a plan that never strikes.
func NewWatch() *Watch {
	w := &Watch{}
	w.Set(NewPlan(Aim{}, Known{}, nil))
	return w
}

// Set puts a plan in place, for connections that begin from now on.
func (w *Watch) Set(p *Plan) { w.plan.Store(p) }

func (w *Watch) now() *Plan { return w.plan.Load() }
