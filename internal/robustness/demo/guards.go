package demo

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/payonce/payonce/internal/robustness/harness"
)

// Guard is a guard of docs/reference/guards.md that the guard lab can remove.
type Guard struct {
	Name string `json:"guard"`
	Kind string `json:"kind"`
	// Remove is the SQL that removes it from the migrated database.
	Remove string `json:"removed"`
	// Fault is what happens, and what the guard refuses.
	Fault string `json:"fault"`
	// Red are the checks of the audit that are violated without the guard, and no others.
	Red []string `json:"expected"`
	// Charge is what then happened to a charge.
	Charge string `json:"charge"`

	scene entry // by which the fault is inflicted; without an order all faults are
}

// entry is an action or a guard of lab.txt: its members by their names. A scene sends the requests
// for an order, and then runs a statement by hand, or sends them at once so that they meet at a
// table which so many sessions wait for. $n numbers requests, $try attempts.
type entry map[string]string

//go:embed lab.txt
var labText string

// entries are all of a sort, in the order of lab.txt.
func entries(sort string) (all []entry) {
	for text := range strings.SplitSeq(labText, "\n\n") {
		e, name := entry{}, ""
		for line := range strings.Lines(text) {
			word, value, _ := strings.Cut(line, " ")
			name = cmp.Or(word, name) // a line without a name continues the one before
			e[name] = strings.TrimSpace(e[name] + "\n" + strings.TrimSpace(value))
		}
		if e[sort] != "" {
			all = append(all, e)
		}
	}
	return all
}

// Guards are the guards of the lab, in the order in which `--break all` removes them. The last
// entry removes guards that stand behind others: without them nothing is violated.
func Guards() (all []Guard) {
	for _, e := range entries("guard") {
		red := strings.FieldsFunc(e["violated"], func(r rune) bool { return r == '\n' })
		all = append(all, Guard{e["guard"], e["kind"], e["remove"], e["fault"], red, e["charge"], e})
	}
	return all
}

// sceneStock is the supply of the articles of the guard lab.
var sceneStock = []string{"mug=10", "last=1", "gone=1"}

// inflict inflicts the guard's fault, which leaves payonce sound as long as all guards are there. It
// returns the charges whose timelines show what happened.
func (g Guard) inflict(ctx context.Context, s *stage) (shown []string, err error) {
	switch {
	case g.scene["order"] == "":
		for _, other := range Guards() {
			if err == nil && other.scene["order"] != "" {
				shown, err = other.inflict(ctx, s)
			}
		}
	case g.scene["hand"] != "":
		shown, err = s.byHand(ctx, g.scene)
	default:
		if _, err = s.db.Exec(ctx, g.scene["before"]); err == nil {
			shown, err = s.rivals(ctx, g.scene)
			_, undone := s.db.Exec(ctx, g.scene["after"])
			err = errors.Join(err, undone)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", g.Fault, err)
	}
	return shown, nil
}

// byHand runs a statement that a guard may refuse, after a charge.
func (s *stage) byHand(ctx context.Context, scene entry) ([]string, error) {
	id, err := s.endedCharge(ctx, scene["order"], scene["sku"])
	if err == nil {
		_, err = s.db.Exec(ctx, strings.ReplaceAll(scene["hand"], "$charge", id))
	}
	if refused, is := errors.AsType[*pgconn.PgError](err); is && strings.HasPrefix(refused.Code, "23") {
		err = nil
	}
	return []string{id}, err
}

// rivals sends requests that meet, until several made something: on a busy machine the apis decide
// one after another, and an api waits for a lock for milliseconds at a time.
func (s *stage) rivals(ctx context.Context, scene entry) (shown []string, err error) {
	const tries = 5
	made := 0
	for try := 0; try < tries && made < 2 && err == nil; try++ {
		shown, made, err = s.meet(ctx, scene, strconv.Itoa(try))
	}
	return shown, err
}

// meet sends the requests of a scene once. Of a refund the workers go on when all are stored, so
// that they read them at once.
func (s *stage) meet(ctx context.Context, scene entry, try string) (shown []string, made int, err error) {
	fill := func(name string, i int) string {
		return strings.NewReplacer("$try", try, "$n", strconv.Itoa(i)).Replace(scene[name])
	}
	path := chargesPath
	if scene["refund"] != "" {
		id, err := s.endedCharge(ctx, fill("order", 0), "")
		if err != nil {
			return nil, 0, err
		}
		defer func() { err = errors.Join(err, s.workers((*harness.Process).Resume)) }() // of a pause that fails halfway too
		if err := s.workers((*harness.Process).Pause); err != nil {
			return nil, 0, err
		}
		shown, path = []string{id}, chargesPath+"/"+id+"/refunds"
	}
	var mu sync.Mutex
	ids := map[string]bool{}
	err = s.hold(ctx, scene, func(i int) {
		body := cmp.Or(scene["refund"], string(sceneCharge(fill("order", i), scene["sku"])))
		for _, answer := range s.PostAll(ctx, 1, path, fill("key", i), []byte(body)) {
			mu.Lock()
			defer mu.Unlock()
			if id := answer.Member("id"); id != "" {
				ids[id] = true
			}
		}
	})
	if shown == nil {
		shown = slices.Sorted(maps.Keys(ids))
		if !oneKey(scene) {
			shown = shown[:min(1, len(shown))]
		}
	}
	return shown, len(ids), err
}

// oneKey says that the requests of a scene are one request, sent several times.
func oneKey(scene entry) bool { return !strings.Contains(scene["key"], "$n") }

// sceneCharge is a request for a charge of 10.00 of a SKU, or of none.
func sceneCharge(order, sku string) []byte {
	body := map[string]any{"order_id": order, "amount": 1000, "currency": "EUR", "payment_method": visa}
	if sku != "" {
		body["items"] = []item{{sku, 1}}
	}
	return encode(body)
}

// endedCharge is a charge that has succeeded and has no work left.
func (s *stage) endedCharge(ctx context.Context, key, sku string) (string, error) {
	answers := s.PostAll(ctx, 1, chargesPath, key, sceneCharge(key, sku))
	if len(answers) == 0 {
		return "", context.Cause(ctx)
	}
	if id := answers[0].Member("id"); id != "" {
		return id, s.quiet(ctx, false)
	}
	return "", fmt.Errorf("charge %s: answered %+v", key, answers[0])
}

// selectWaiting returns whether so many sessions wait for the table that hold has locked.
const selectWaiting = `
select count(*) >= $1
  from pg_locks waits
  join pg_locks held using (database, relation)
 where held.mode = 'ExclusiveLock'
   and held.granted
   and not waits.granted`

// hold locks the table of a scene against writers, begins its requests at once, and unlocks the table
// when so many sessions wait for it: a pause later, but for requests with one key, since an api
// waits for the use of a key no longer. It returns when the requests have. The lock has no
// transaction id, so it does not hold back the followers of the ledger.
func (s *stage) hold(ctx context.Context, scene entry, send func(int)) error {
	table, sessions, _ := strings.Cut(scene["meet"], " ")
	pause := 300 * time.Millisecond
	if oneKey(scene) {
		pause = 0
	}
	n, _ := strconv.Atoi(scene["requests"]) // the text is a part of the program
	var sending sync.WaitGroup
	defer sending.Wait()
	return pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "lock table "+table+" in exclusive mode"); err != nil {
			return err
		}
		for i := range n {
			sending.Go(func() { send(i) })
		}
		return errors.Join(await(ctx, tx, selectWaiting, sessions), harness.Wait(ctx, pause))
	})
}

// workers does something to each worker.
func (s *stage) workers(do func(*harness.Process) error) (err error) {
	for _, p := range s.world.Workers {
		err = errors.Join(err, do(p))
	}
	return err
}
