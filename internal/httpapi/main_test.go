package httpapi_test

import (
	"testing"

	"github.com/payonce/payonce/internal/httpapi"
	"github.com/payonce/payonce/internal/testrun"
)

func TestMain(m *testing.M) {
	*httpapi.RequestTimeout = patience // a test that holds requests may be slow
	testrun.Main(m)
}
