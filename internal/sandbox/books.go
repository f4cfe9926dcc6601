package sandbox

import (
	"cmp"
	"crypto/rand"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
)

//go:embed stripe.json
var description []byte

// known is what the sandbox knows of Stripe: the members of its objects in the version that the events name,
// each with the value that it has where nothing sets it; its test payment methods; the currencies in which it
// charges cards; the least amounts of a payment, in its minor units; and of what some amounts have to be a multiple.
// The source is https://docs.stripe.com/currencies. The other currencies have no least amount here.
type known struct {
	Objects              map[string]object
	Methods              map[string]outcome
	Currencies           string
	Minimums, Increments map[string]int64
}

var stripe = func() (k known) {
	if err := json.Unmarshal(description, &k); err != nil {
		panic(err) // the file is part of the program
	}
	return k
}()

// object is a record, in most cases one of Stripe's objects with all of its members. What
// Stripe's API does not show has a name that begins with _.
type object map[string]any

func (o object) text(name string) string {
	text, _ := o[name].(string)
	return text
}

// number is an amount or a count. One that was read from the journal is a float64, which holds it exactly.
func (o object) number(name string) int64 {
	if n, fresh := o[name].(int64); fresh {
		return n
	}
	n, _ := o[name].(float64)
	return int64(n)
}

// named is a member of the object's metadata.
func (o object) named(name string) string {
	pairs, _ := o["metadata"].(map[string]any)
	return object(pairs).text(name)
}

// shown is the object as Stripe's API shows it.
func (o object) shown() object {
	shown := maps.Clone(o)
	maps.DeleteFunc(shown, func(name string, _ any) bool { return strings.HasPrefix(name, "_") })
	return shown
}

// newObject makes an object of a kind. A text that is "" leaves the member as Stripe has it where nothing
// sets it.
func (s *Sandbox) newObject(kind, prefix string, set object) object {
	o := maps.Clone(stripe.Objects[kind])
	o["id"], o["created"] = newID(prefix), s.options.Now().Unix()
	for name, value := range set {
		if value != "" {
			o[name] = value
		}
	}
	return o
}

// newID returns a random identifier with Stripe's prefix.
func newID(prefix string) string { return prefix + rand.Text() }

// books are the records of the provider and of the shop. They change by apply alone, which is given what a
// line of the file holds, so that they are the same after a restart.
type books struct {
	objects map[string]object   // by id
	ids     map[string][]string // by kind, in the order in which the objects were made
	// waiting has, by kind, the ids of intents that are processing, and of events that were not taken: true if sent.
	waiting map[string]map[string]bool

	file *os.File // of the journal; nil: the records last as long as the process
	end  int64
}

func (b *books) apply(changed []object) {
	for _, o := range changed {
		id, kind := o.text("id"), o.text("object")
		if b.objects[id] == nil {
			b.ids[kind] = append(b.ids[kind], id)
		}
		b.objects[id] = o
		if kind == "event" && o["_taken"] != true || o["status"] == statusProcessing {
			b.waiting[kind][id] = false
		} else {
			delete(b.waiting[kind], id)
		}
	}
}

// counted is a counter, one higher.
func (b *books) counted(name string) object {
	return object{"id": name, "object": "counter", "n": b.objects[name].number("n") + 1}
}

// get returns a copy of an object, which a decision may change; nil if there is none of this kind.
func (b *books) get(kind, id string) object {
	if o := b.objects[id]; o["object"] == kind {
		return maps.Clone(o)
	}
	return nil
}

// pick returns some members of an object, and others.
func (o object) pick(names string, others object) object {
	for name := range strings.FieldsSeq(names) {
		others[name] = o[name]
	}
	return others
}

// getBooks is GET /books. Refunds that failed moved no money and are left out. What was made outside has its
// own id for a reference.
func (s *Sandbox) getBooks(*call) any {
	b, captured, shown := s.books, map[any]int{}, object{}
	for _, name := range []string{"requests", "duplicates_suppressed"} {
		shown[name] = b.objects[name].number("n")
	}
	list := func(name, kind string, show func(object) object) {
		rows := []object{}
		for _, id := range b.ids[kind] {
			if row := show(b.objects[id]); row != nil {
				rows = append(rows, row)
			}
		}
		shown[name] = rows
	}
	list("captures", "charge", func(c object) object {
		if c["captured"] != true {
			return nil
		}
		id := c.text("payment_intent")
		captured[id]++
		return c.pick("payment_intent amount currency", object{
			"reference": b.objects[id].text("_charge"), "charge_reference": c.named("charge_reference"),
		})
	})
	list("intents", "payment_intent", func(i object) object {
		return i.pick("id status amount currency", object{
			"reference": i.text("_charge"), "charge_reference": i.named("charge_reference"), "captures": captured[i["id"]],
		})
	})
	list("refunds", "refund", func(r object) object {
		if r["status"] != statusSucceeded {
			return nil
		}
		return r.pick("payment_intent amount", object{"reference": cmp.Or(r.named("refund_id"), r.text("id"))})
	})
	list("notifications", "notification", func(n object) object {
		return n.pick("webhook_id reference type deliveries effects", object{})
	})
	return shown
}

func unrecognized(c *call) any {
	return refuse(http.StatusNotFound, "", "", "Unrecognized request URL (%s: %s).", c.Method, c.URL.Path)
}

// about serves a call about the object that the path names.
func (s *Sandbox) about(kind, param string, run func(*call, object) any) endpoint {
	return func(c *call) any {
		if o := s.books.get(kind, c.PathValue("id")); o != nil {
			return run(c, o)
		}
		return noSuch(http.StatusNotFound, kind, param, c.PathValue("id"))
	}
}

func retrieve(_ *call, o object) any { return o }

// list answers a page of the objects of a kind, newest first. Each parameter but those of the page is a
// member that the objects must have.
func (s *Sandbox) list(kind string) endpoint {
	return func(c *call) any {
		ids := s.books.ids[kind]
		if cursor := c.params.Get("starting_after"); cursor != "" {
			at := slices.Index(ids, cursor)
			if at < 0 {
				return noSuch(http.StatusBadRequest, kind, "starting_after", cursor)
			}
			ids = ids[:at]
		}
		limit := int(cmp.Or(c.params.number("limit"), limitDefault))
		page := []object{}
		for _, id := range slices.Backward(ids) {
			if o := s.books.objects[id]; c.params.match(o) {
				page = append(page, o.shown())
			}
			if len(page) > limit {
				break
			}
		}
		more := len(page) > limit
		return object{"object": "list", "url": c.URL.Path, "has_more": more, "data": page[:min(len(page), limit)]}
	}
}

// match reports whether an object has the members that the parameters of a list name.
func (p params) match(o object) bool {
	for name := range p.Values {
		if !strings.Contains(ofPage, name) && o[name] != p.Get(name) {
			return false
		}
	}
	return true
}

// openBooks reads the records of a file, or makes it. The file is a journal: each line holds what objects became
// by one decision. What was written before a SIGKILL is read again: the operating system has it. A line that was
// cut is as if it had not been written.
func openBooks(path string) (b *books, err error) {
	b = &books{
		objects: map[string]object{}, ids: map[string][]string{},
		waiting: map[string]map[string]bool{"event": {}, "payment_intent": {}},
	}
	if path == "" {
		return b, nil
	}
	if b.file, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return nil, fmt.Errorf("SANDBOX_FILE cannot be opened: %w", err)
	}
	lines := json.NewDecoder(b.file)
	for ; ; b.end = lines.InputOffset() {
		var changed []object
		switch err := lines.Decode(&changed); {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return b, b.file.Truncate(b.end)
		case err != nil:
			return nil, errors.Join(fmt.Errorf("SANDBOX_FILE is no journal of a sandbox: %w", err), b.file.Close())
		}
		b.apply(changed)
	}
}

// record writes what objects became as a line of its own, and applies it as it is read again. It panics if the line
// cannot be written, and then nothing has happened: the rest of such a line is left out when the file is read.
func (b *books) record(changed ...object) {
	if len(changed) == 0 {
		return
	}
	line, _ := json.Marshal(changed) // objects have no error
	if b.file != nil {
		n, err := b.file.WriteAt(append([]byte("\n"), line...), b.end)
		if err != nil {
			_ = b.file.Truncate(b.end) // else a shorter line would stand before the rest of it
			panic(err)
		}
		b.end += int64(n)
	}
	var written []object
	_ = json.Unmarshal(line, &written) // as it was written
	b.apply(written)
}
