package httpapi_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/intake"
	"github.com/payonce/payonce/internal/audit"
	"github.com/payonce/payonce/internal/httpapi"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/ledger"
)

// requests are the types that bodies are read into, by the names of their schemas.
func requests() map[string]reflect.Type {
	return map[string]reflect.Type{
		"ChargeRequest": reflect.TypeFor[intake.Charge](),
		"Item":          reflect.TypeFor[intake.Item](),
		"RefundRequest": reflect.TypeFor[intake.Refund](),
		"Nothing":       reflect.TypeFor[struct{}](),
	}
}

func answers() map[string]reflect.Type {
	all := map[string]reflect.Type{
		"Charge":   reflect.TypeFor[domain.View](),
		"Step":     reflect.TypeFor[domain.StepState](),
		"Failure":  reflect.TypeFor[domain.Failure](),
		"Refund":   reflect.TypeFor[domain.RefundView](),
		"Balances": reflect.TypeFor[ledger.Balances](),
		"Balance":  reflect.TypeFor[ledger.Balance](),
		"Audit":    reflect.TypeFor[audit.Report](),
		"Check":    reflect.TypeFor[audit.Check](),
		"Message":  reflect.TypeFor[inbox.Entry](),
	}
	maps.Copy(all, httpapi.Answers())
	for _, e := range events() {
		all[reflect.TypeOf(e).Name()] = reflect.TypeOf(e)
	}
	return all
}

// events are one of each type.
func events() []domain.Event {
	var all []domain.Event
	for _, kind := range domain.EventTypes() {
		all = append(all, kind.Zero)
	}
	return all
}

// member is one of an object: the JSON types that it may have, and whether it is
// always there.
type member struct {
	Types  []string
	Always bool
}

// TestTheGoTypesAreTheContracts compares every member of every type that is read
// or written with the schema of it, in both directions.
func TestTheGoTypesAreTheContracts(t *testing.T) {
	t.Parallel()
	for name, goType := range requests() {
		t.Run("a request's "+name, func(t *testing.T) {
			t.Parallel()
			wantMembers(t, name, membersOf(goType, true))
		})
	}
	for name, goType := range answers() {
		t.Run("an answer's "+name, func(t *testing.T) {
			t.Parallel()
			wantMembers(t, name, membersOf(goType, false))
		})
	}
}

func wantMembers(t *testing.T, name string, want map[string]member) {
	t.Helper()
	c := theContract(t)
	at := "/components/schemas/" + name
	schema := c.Node(at)
	if schema == nil {
		t.Fatalf("the contract has no schema %s", name)
	}
	got := map[string]member{}
	properties, _ := schema["properties"].(map[string]any)
	required, _ := schema["required"].([]any)
	for property := range properties {
		got[property] = member{jsonTypes(c.Node(at + "/properties/" + property)), slices.Contains(required, any(property))}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("members of %s (-Go +contract):\n%s", name, diff)
	}
}

// jsonTypes are the types that a schema allows, in order; none where it tells them
// by other schemas only.
func jsonTypes(schema map[string]any) []string {
	var types []string
	switch one := schema["type"].(type) {
	case string:
		types = []string{one}
	case []any:
		for _, t := range one {
			types = append(types, fmt.Sprint(t))
		}
	default: // an object or null
		for _, choice := range asList(schema["oneOf"]) {
			if m, ok := choice.(map[string]any); ok && m["type"] == "null" {
				types = append(types, "null", "object")
			}
		}
	}
	slices.Sort(types)
	return types
}

func asList(v any) []any {
	list, _ := v.([]any)
	return list
}

// membersOf are the JSON members of a struct. What is optional may be null in a
// request, and what is a pointer may be null in an answer.
func membersOf(t reflect.Type, request bool) map[string]member {
	all := map[string]member{}
	for f := range t.Fields() {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "-" || name == "" && !f.Anonymous {
			continue
		}
		if f.Anonymous {
			maps.Copy(all, membersOf(f.Type, request))
			continue
		}
		optional := options == "omitempty"
		m := member{Types: []string{jsonType(f.Type)}, Always: !optional}
		if request && optional || !request && !optional && f.Type.Kind() == reflect.Pointer {
			m.Types = append(m.Types, "null")
			slices.Sort(m.Types)
		}
		all[name] = m
	}
	return all
}

func jsonType(t reflect.Type) string {
	if t == reflect.TypeFor[time.Time]() {
		return "string"
	}
	if t == reflect.TypeFor[json.RawMessage]() { // an event's data
		return "object"
	}
	switch t.Kind() {
	case reflect.Pointer:
		return jsonType(t.Elem())
	case reflect.String:
		return "string"
	case reflect.Bool:
		return "boolean"
	case reflect.Int, reflect.Int64:
		return "integer"
	case reflect.Slice:
		return "array"
	default:
		return "object"
	}
}

// TestEveryEventIsInTheContract: its type with the schema of its data, and no other.
func TestEveryEventIsInTheContract(t *testing.T) {
	t.Parallel()
	c := theContract(t)
	want, got := map[string]string{}, map[string]string{}
	for _, e := range events() {
		want[domain.TypeOf(e)] = "#/components/schemas/" + reflect.TypeOf(e).Name()
	}
	for _, choice := range asList(c.Node("/components/schemas/Event")["oneOf"]) {
		of := struct {
			Properties struct {
				Type struct{ Const string }
				Data map[string]string
			}
		}{}
		text, err := json.Marshal(choice)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(text, &of); err != nil {
			t.Fatal(err)
		}
		got[of.Properties.Type.Const] = of.Properties.Data["$ref"]
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("events (-Go +contract):\n%s", diff)
	}
}

// TestTheValuesOfTheContract: what a member can be is what the code can say.
func TestTheValuesOfTheContract(t *testing.T) {
	t.Parallel()
	c := theContract(t)
	for pointer, want := range map[string]any{
		"ChargeStatus": []domain.Status{domain.Pending, domain.Succeeded, domain.Failed, domain.PartiallyRefunded, domain.Refunded},
		"Step/properties/status": []domain.StepStatus{
			domain.StepPending, domain.StepDone, domain.StepFailed, domain.StepSkipped, domain.StepCompensated,
		},
		"FailureCode": []domain.FailureCode{
			domain.OutOfStock, domain.UnknownSKU, domain.CardDeclined, domain.AuthenticationRequired, domain.ProviderRefused, domain.Canceled,
		},
		"Refund/properties/status": []domain.RefundStatus{
			domain.RefundStatusPending, domain.RefundStatusSucceeded, domain.RefundStatusFailed,
		},
		"Message/properties/status": []inbox.Status{
			inbox.StatusPending, inbox.StatusRunning, inbox.StatusDone, inbox.StatusDead, inbox.StatusDiscarded,
		},
		"PaymentAttemptFailed/properties/stage": []domain.Stage{domain.StageCreate, domain.StageConfirm},
	} {
		got := c.Node("/components/schemas/" + pointer)["enum"]
		if diff := cmp.Diff(written(t, want), written(t, got)); diff != "" {
			t.Errorf("%s (-Go +contract):\n%s", pointer, diff)
		}
	}
	bounds := c.Node("/components/schemas/Amount")
	if got, want := fmt.Sprint(bounds["minimum"], " to ", bounds["maximum"]), fmt.Sprint(domain.MinAmount, " to ", domain.MaxAmount); got != want {
		t.Errorf("amounts are from %s, want %s", got, want)
	}
	for _, scope := range merchants.Scopes() {
		if text := fmt.Sprint(c.Node("/components/securitySchemes/apiKey")["description"]); !strings.Contains(text, "`"+string(scope)+"`") {
			t.Errorf("the scope %s is not told of", scope)
		}
	}
	kinds := map[string]bool{}
	for name := range c.Node("/components/schemas") {
		for _, part := range asList(c.Node("/components/schemas/" + name)["allOf"]) {
			if text := written(t, part); strings.Contains(text, "/problems/") {
				kinds[regexpProblem().FindString(text)] = true
			}
		}
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(advices())), slices.Sorted(maps.Keys(kinds))); diff != "" {
		t.Errorf("problems (-tests +contract):\n%s", diff)
	}
}

func regexpProblem() *regexp.Regexp { return regexp.MustCompile(`/problems/[a-z-]+`) }

func written(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
