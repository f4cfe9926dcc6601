package httpapi

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"
	"github.com/swaggest/swgui/v5/static"
	"go.yaml.in/yaml/v3"
)

// contract is the API as callers may rely on it. Tests compare every answer with it.
//
//go:embed openapi.yaml
var contract []byte

// The page to read the contract is Swagger UI, whose files are in the program.
//
//go:embed openapi_page.html
var docsPage []byte

//go:embed openapi_page.js
var docsScript []byte

// docsPolicy lets the page load from this server alone. Swagger UI sets styles on its
// elements and draws its icons from data URLs.
const docsPolicy = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; " +
	"img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// asset is a file that is the same for every caller until the program is replaced.
type asset struct {
	mediaType, policy, tag string
	content                []byte
}

// newAssets are the assets by path.
func newAssets() (map[string]asset, error) {
	script, err := unpack("swagger-ui-bundle.js.gz")
	if err != nil {
		return nil, err
	}
	style, err := unpack("swagger-ui.css.gz")
	if err != nil {
		return nil, err
	}
	asJSON, err := contractAsJSON()
	if err != nil {
		return nil, err
	}
	assets := map[string]asset{
		"/openapi.yaml":              {mediaType: "application/yaml", content: contract},
		"/openapi.json":              {mediaType: echo.MIMEApplicationJSON, content: asJSON},
		"/docs":                      {mediaType: echo.MIMETextHTMLCharsetUTF8, policy: docsPolicy, content: docsPage},
		"/docs/page.js":              {mediaType: "text/javascript; charset=utf-8", content: docsScript},
		"/docs/swagger-ui-bundle.js": {mediaType: "text/javascript; charset=utf-8", content: script},
		"/docs/swagger-ui.css":       {mediaType: "text/css; charset=utf-8", content: style},
	}
	for path, a := range assets {
		sum := sha256.Sum256(a.content)
		a.tag = `W/"` + hex.EncodeToString(sum[:8]) + `"` // weak: compressed or not
		assets[path] = a
	}
	return assets, nil
}

// contractAsJSON is the contract in JSON, its members in alphabetical order.
func contractAsJSON() ([]byte, error) {
	var document map[string]any
	if err := yaml.Unmarshal(contract, &document); err != nil {
		return nil, fmt.Errorf("read the contract: %w", err)
	}
	written, err := json.Marshal(document)
	if err != nil {
		return nil, fmt.Errorf("write the contract as JSON: %w", err)
	}
	return written, nil
}

func unpack(name string) ([]byte, error) {
	packed, err := static.FS.Open(name)
	if err != nil {
		return nil, fmt.Errorf("open a file of the page: %w", err)
	}
	defer func() { _ = packed.Close() }()
	reader, err := gzip.NewReader(packed)
	if err != nil {
		return nil, fmt.Errorf("unpack a file of the page: %w", err)
	}
	return io.ReadAll(reader)
}

// getAsset is GET /openapi.yaml, GET /openapi.json, GET /docs and the files of that page. A
// caller that has the file already is answered 304.
func (a *API) getAsset(c echo.Context) error {
	r, h := c.Request(), c.Response().Header()
	file, found := a.assets[r.URL.Path]
	if !found {
		return echo.ErrNotFound
	}
	h.Set(echo.HeaderContentType, file.mediaType)
	h.Set("ETag", file.tag)
	h.Set(echo.HeaderCacheControl, "no-cache") // it may be kept, and is validated each time
	if file.policy != "" {
		h.Set(echo.HeaderContentSecurityPolicy, file.policy)
	}
	r.Header.Del("Range") // whole files alone
	r.Header.Del("If-Match")
	http.ServeContent(c.Response(), r, "", time.Time{}, bytes.NewReader(file.content))
	return nil
}

// refusesGzip matches an Accept-Encoding that names gzip with a weight of zero.
var refusesGzip = regexp.MustCompile(`gzip\s*;\s*q=0(\.0*)?\s*(,|$)`)

func gzipped(h echo.HandlerFunc) echo.HandlerFunc {
	return middleware.GzipWithConfig(middleware.GzipConfig{Skipper: func(c echo.Context) bool {
		return refusesGzip.MatchString(c.Request().Header.Get(echo.HeaderAcceptEncoding))
	}})(h)
}
