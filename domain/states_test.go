package domain_test

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/payonce/payonce/domain"
)

// state is a charge by what has happened to it. Its events follow those of another state.
type state struct {
	name, after string
	events      []domain.Event
	partial     bool
}

// book is what testdata/histories.txt says.
type book struct {
	words      map[string]string
	states     []state
	candidates map[string]domain.Event
}

var histories = sync.OnceValue(func() book {
	b := book{words: map[string]string{}, states: []state{{name: "absent"}}, candidates: stored()}
	for line := range strings.Lines(string(read("histories.txt"))) {
		line = strings.TrimSpace(line)
		word, meaning, defined := strings.Cut(line, " = ")
		switch parts := strings.Split(line, " | "); {
		case line == "" || line[0] == '#':
		case defined:
			b.words[word] = meaning
		case len(parts) == 2:
			b.candidates[parts[0]] = b.event(parts[1])
		default:
			s := state{after: parts[1]}
			s.name, s.partial = strings.CutSuffix(parts[0], " …")
			for e := range strings.SplitSeq(parts[2], " + ") {
				s.events = append(s.events, b.event(e))
			}
			b.states = append(b.states, s)
		}
	}
	return b
})

func (b book) event(text string) domain.Event {
	kind, members := b.members(text)
	data, err := json.Marshal(members)
	if err != nil {
		panic(err)
	}
	e, err := domain.Decode(kind, data)
	if err != nil {
		panic(err)
	}
	return e
}

// members are those of a stored event, or of a defined one, with changes.
func (b book) members(text string) (kind string, members map[string]any) {
	kind, changes, changed := strings.Cut(text, " ")
	if of, defined := b.words[kind]; defined {
		kind, members = b.members(of)
	} else if err := json.Unmarshal(read("events/"+kind+".json"), &members); err != nil {
		panic(err)
	}
	if meaning, defined := b.words[changes]; defined {
		changes = meaning
	}
	if changed {
		if err := json.Unmarshal([]byte(changes), &members); err != nil {
			panic(text + ": " + err.Error())
		}
	}
	return kind, members
}

func read(file string) []byte {
	data, err := os.ReadFile("testdata/" + file)
	if err != nil {
		panic(err)
	}
	return data
}

// stored is one event of each kind, by the name of its golden file, which holds it as it is stored. An event
// that needs another form gets another name.
func stored() map[string]domain.Event {
	all := map[string]domain.Event{}
	for _, kind := range domain.EventTypes() {
		all[kind.Name] = book{}.event(kind.Name)
	}
	return all
}

// event is what testdata/histories.txt would call so.
func event(text string) domain.Event { return histories().event(text) }

// history returns the stream of a charge in a state.
func history(name string) []domain.Event {
	if name == "" {
		return nil
	}
	states := histories().states
	s := states[slices.IndexFunc(states, func(s state) bool { return s.name == name })]
	return slices.Concat(history(s.after), s.events)
}

// in returns a charge in a state.
func in(name string) domain.Charge { return domain.Fold(domain.Charge{ID: "ch_1"}, history(name)...) }

// back is a request to refund, and gone its success.
func back(id string, amount int64) domain.RefundRequested {
	return domain.RefundRequested{RefundID: id, Amount: amount, Reason: "a broken mug", Notify: true}
}

func gone(id, object string, amount int64) domain.RefundSucceeded {
	return domain.RefundSucceeded{RefundID: id, Provider: "stripe", ProviderRefund: object, Amount: amount}
}

func eur(amount int64) domain.Money { return domain.Money{Amount: amount, Currency: "EUR"} }
