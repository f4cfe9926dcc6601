package httpapi_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/pb33f/libopenapi/datamodel/high/base"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/reference"
)

// TestReference_events writes the page of events: the types of the registry in domain, the
// members of each as the contract has them, and the stored example of each.
func TestReference_events(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	for _, event := range domain.EventTypes() {
		schema := schemaAt(t, reflect.TypeOf(event.Zero).Name())
		golden, err := os.ReadFile("../../domain/testdata/events/" + event.Name + ".json")
		var example bytes.Buffer
		if err := errors.Join(err, json.Compact(&example, golden)); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&text, "### %s\n\n%s\n\n%s\n\n", event.Name, schema.Description, effectsOf(event))
		var rows [][]string
		for name, proxy := range schema.Properties.FromOldest() {
			member := proxy.Schema()
			presence := "optional"
			if slices.Contains(schema.Required, name) {
				presence = "always"
			}
			meaning, _, _ := strings.Cut(member.Description, "\n")
			rows = append(rows, []string{reference.Code(name), typeOf(member), presence, meaning})
		}
		text.WriteString(reference.Table([]string{"member", "type", "present", "meaning"}, rows))
		fmt.Fprintf(&text, "```json\n%s\n```\n\n", example.String())
	}
	reference.Section(t, "events.md", "Types", text.String())
}

// effectsOf says which program appends an event, and what follows from it.
func effectsOf(event domain.EventType) string {
	effects := "Appended by the worker."
	if event.Request {
		effects = "Appended by the api; the worker then processes the charge."
	}
	if event.Posts {
		effects += " It has postings."
	}
	if event.Webhook != "" {
		effects += " The merchant gets the webhook " + reference.Code(event.Webhook) + "."
	}
	return effects
}

// typeOf is the JSON type of a member, with the values that it is limited to.
func typeOf(s *base.Schema) string {
	text := strings.Join(s.Type, " or ")
	if s.Items != nil {
		text += " of " + typeOf(s.Items.A.Schema()) + "s"
	}
	var values []string
	for _, value := range s.Enum {
		values = append(values, reference.Code(value.Value))
	}
	if len(values) > 0 {
		text += ": " + strings.Join(values, ", ")
	}
	return text
}
