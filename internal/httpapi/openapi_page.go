package httpapi

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"fmt"
	"io"
	"strings"

	"github.com/labstack/echo/v4"
	"github.com/swaggest/swgui/v5/static"
)

// The page to read the contract: Swagger UI, whose files are in the program. It
// asks nobody but this server, and its policy lets it ask nobody else.
//
//go:embed openapi_page.html
var docsPage []byte

//go:embed openapi_page.js
var docsScript []byte

// Swagger UI sets styles on its elements and draws its icons from data URLs.
const docsPolicy = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; " +
	"img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

const headerPolicy = "Content-Security-Policy"

// getDocs is GET /docs.
func (a *API) getDocs(c echo.Context) error {
	c.Response().Header().Set(headerPolicy, docsPolicy)
	return document(c, echo.MIMETextHTMLCharsetUTF8, docsPage)
}

// getDocsFile is GET /docs/{file}: what the page is made of.
func (a *API) getDocsFile(c echo.Context) error {
	switch name := c.Param("file"); name {
	case "page.js":
		return document(c, "text/javascript; charset=utf-8", docsScript)
	case "swagger-ui-bundle.js":
		return unpacked(c, "text/javascript; charset=utf-8", name)
	case "swagger-ui.css":
		return unpacked(c, "text/css; charset=utf-8", name)
	default:
		return echo.ErrNotFound
	}
}

// unpacked sends a file of Swagger UI, which is kept packed: as it is to those who
// can read it so.
func unpacked(c echo.Context, mediaType, name string) error {
	packed, err := static.FS.ReadFile(name + ".gz")
	if err != nil {
		return fmt.Errorf("read a file of the page: %w", err)
	}
	c.Response().Header().Add(echo.HeaderVary, echo.HeaderAcceptEncoding)
	if takesGzip(c.Request().Header.Get(echo.HeaderAcceptEncoding)) {
		c.Response().Header().Set(echo.HeaderContentEncoding, "gzip")
		return document(c, mediaType, packed)
	}
	reader, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return fmt.Errorf("unpack a file of the page: %w", err)
	}
	content, err := io.ReadAll(reader)
	if err != nil {
		return fmt.Errorf("unpack a file of the page: %w", err)
	}
	return document(c, mediaType, content)
}

// takesGzip tells whether gzip is named by those who accept it, and not with a
// weight of nothing.
func takesGzip(accepted string) bool {
	for coding := range strings.SplitSeq(accepted, ",") {
		name, weight, _ := strings.Cut(coding, ";")
		if strings.EqualFold(strings.TrimSpace(name), "gzip") {
			_, q, _ := strings.Cut(weight, "=")
			return q == "" || strings.Trim(q, " 0.") != ""
		}
	}
	return false
}
