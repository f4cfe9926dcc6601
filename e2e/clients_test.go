package e2e_test

import (
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/testrun"
)

var clients = flag.String("clients", "", "generate clients with these commands, OAPI-CODEGEN@VERSION,OGEN@VERSION, and call an api with them")

// TestClients_generatedFromTheServedContract_callTheAPI generates two clients with the
// defaults of their generators, one from the contract in YAML and one from it in JSON,
// compiles both, and runs testdata/clients.go.txt with them.
func TestClients_generatedFromTheServedContract_callTheAPI(t *testing.T) {
	t.Parallel()
	oapiCodegen, ogen, ok := strings.Cut(*clients, ",")
	if !ok {
		t.Skip("not run: it downloads generators; -clients runs it")
	}
	d := deploy(t, setup{apis: 1, workers: 1})
	folder, api := t.TempDir(), d.APIs[0].URL()
	err := os.WriteFile(filepath.Join(folder, "main.go"), []byte(readFile(t, "testdata/clients.go.txt")), 0o600)
	must(t, errors.Join(err, os.Mkdir(filepath.Join(folder, "oapi"), 0o755)))
	var output []byte
	for _, command := range []string{
		"mod init clients",
		"run " + oapiCodegen + " -package oapi -o oapi/client.go " + api + "/openapi.yaml",
		"run " + ogen + " -package ogen -target ogen " + api + "/openapi.yaml",
		"get " + ogen, // its package is imported by what it generates
		"mod tidy",
		"vet ./...",
		"run .",
	} {
		run := exec.CommandContext(t.Context(), "go", strings.Fields(command)...)
		run.Dir, run.Env = folder, append(os.Environ(), "GOFLAGS=-mod=mod", "API="+api, "KEY="+d.Secrets.API)
		if output, err = run.CombinedOutput(); err != nil {
			t.Fatalf("go %s: %v\n%s", command, err, output)
		}
	}
	want := `status=202 replayed="" same=true
status=202 replayed="true" same=true
amount=1000 currency=USD status=succeeded
event=charge.requested.v1 order=17
told=charge.succeeded order=17
`
	testrun.Same(t, "", want, string(output))
	const order = `{"order_id": "17", "amount": 1000, "currency": "USD", "payment_method": "pm_card_visa"}`
	again := d.insist(t, request{key: "order-17", body: []byte(order)})
	if again.Header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("the same request by hand is answered %d %s", again.Status, again.Body)
	}
}
