package sandbox

import (
	"cmp"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
)

const (
	// keyRetention is how long keys are known unless a plan says otherwise.
	keyRetention = "24h"
	// slowMax bounds one delay, in milliseconds.
	slowMax = 60_000
)

// plan is the body of PUT /faults. Each p is a probability, drawn per request.
type plan struct {
	Seed       int64   `json:"seed"`
	DropBefore float64 `json:"drop_before"`
	DropAfter  float64 `json:"drop_after"`
	Error500   float64 `json:"error_500"`
	Slow       slow    `json:"slow"`
	ShopDown   bool    `json:"shop_down"`
	// ForgetKeysAfter is a duration as Go writes it; "" means 24 h, "0s" that
	// every key is new.
	ForgetKeysAfter string `json:"forget_keys_after"`
}

type slow struct {
	P  float64 `json:"p"`
	MS int64   `json:"ms"`
}

// retention is how long the plan keeps keys.
func (p plan) retention() (time.Duration, error) {
	return time.ParseDuration(cmp.Or(p.ForgetKeysAfter, keyRetention))
}

func (p plan) check() error {
	for name, p := range map[string]float64{
		"drop_before": p.DropBefore, "drop_after": p.DropAfter, "error_500": p.Error500, "slow.p": p.Slow.P,
	} {
		if p < 0 || p > 1 {
			return fmt.Errorf("%s is %v: give a probability from 0 to 1", name, p)
		}
	}
	if p.Slow.MS < 0 || p.Slow.MS > slowMax {
		return fmt.Errorf("slow.ms is %d: give milliseconds from 0 to %d", p.Slow.MS, slowMax)
	}
	if d, err := p.retention(); err != nil || d < 0 {
		return fmt.Errorf("forget_keys_after is %q: give a duration such as 24h", p.ForgetKeysAfter)
	}
	return nil
}

// draw is what one request meets, before its effect or after it.
type draw struct {
	slow                    time.Duration
	dropBefore, dropAfter   bool
	errorBefore, errorAfter bool
	shopDown                bool
	keepKeys                time.Duration
}

// faults is the plan in force. It lives in memory: a restarted sandbox has no
// faults.
type faults struct {
	mu     sync.Mutex
	plan   plan
	random *rand.Rand
}

// set starts the plan's sequence of draws from its seed.
func (f *faults) set(p plan) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.plan = p
	f.random = rand.New(rand.NewPCG(uint64(p.Seed), 0)) //nolint:gosec // faults must repeat
}

// draw returns the next of the plan's sequence. Each draw takes five numbers, so
// changing one probability moves no other fault.
func (f *faults) draw() draw {
	f.mu.Lock()
	defer f.mu.Unlock()
	var n [5]float64
	for i := range n {
		n[i] = f.random.Float64()
	}
	fails := n[2] < f.plan.Error500
	d := draw{
		dropBefore:  n[0] < f.plan.DropBefore,
		dropAfter:   n[1] < f.plan.DropAfter,
		errorBefore: fails && n[3] >= 0.5,
		errorAfter:  fails && n[3] < 0.5,
		shopDown:    f.plan.ShopDown,
	}
	d.keepKeys, _ = f.plan.retention() // checked when it was set
	if n[4] < f.plan.Slow.P {
		d.slow = time.Duration(f.plan.Slow.MS) * time.Millisecond
	}
	return d
}

func (s *Sandbox) putFaults(r *http.Request) (answer, error) {
	var p plan
	if err := readControl(r, &p); err != nil {
		return answer{}, err
	}
	if err := p.check(); err != nil {
		return answer{}, refused(http.StatusBadRequest, "%v", err)
	}
	s.faults.set(p)
	return object(http.StatusOK, p), nil
}

func (s *Sandbox) deleteFaults(w http.ResponseWriter, _ *http.Request) {
	s.faults.set(plan{})
	w.WriteHeader(http.StatusNoContent)
}

// readControl reads the body of a control call strictly: unknown, repeated and
// case-folded members and trailing data are refused.
func readControl(r *http.Request, v any) error {
	body, err := io.ReadAll(io.LimitReader(r.Body, bodyLimit))
	if err != nil {
		return refused(http.StatusBadRequest, "read the body: %v", err)
	}
	if err := json.Unmarshal(body, v, json.RejectUnknownMembers(true)); err != nil {
		return refused(http.StatusBadRequest, "the body cannot be read: %v", err)
	}
	return nil
}
