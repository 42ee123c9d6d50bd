package web

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"

	"github.com/seed-26586806/backing-image-manager/fetch/httperror"
)

// asset is a file that does not change while the daemon runs.
type asset struct {
	content, packed []byte
	kind            string
	link            string // with a hash of the content, so that browsers may keep it
}

func readAssets(prefix string) map[string]asset {
	all := map[string]asset{}
	entries, err := fs.ReadDir(files, "assets")
	for _, e := range entries {
		content, readErr := files.ReadFile("assets/" + e.Name())
		if readErr != nil {
			err = readErr
		}
		sum := sha256.Sum256(content)
		all[e.Name()] = asset{content, pack(content), mime.TypeByExtension(path.Ext(e.Name())), prefix + "/assets/" + e.Name() + "?v=" + hex.EncodeToString(sum[:6])}
	}
	if err != nil {
		panic("web: read an embedded file: " + err.Error())
	}
	return all
}

// packers are compressors to use again: a new one takes 800 kB.
var packers = sync.Pool{New: func() any { return gzip.NewWriter(nil) }}

func pack(content []byte) []byte {
	var b bytes.Buffer
	w := packers.Get().(*gzip.Writer)
	defer packers.Put(w)
	w.Reset(&b)
	_, err := w.Write(content)
	if closed := w.Close(); err != nil || closed != nil {
		panic("web: compress into memory: " + fmt.Sprint(err, closed))
	}
	return b.Bytes()
}

func (s *Site) asset(w http.ResponseWriter, r *http.Request) {
	a, ok := s.assets[r.PathValue("file")]
	setSecurity(w.Header())
	if !ok {
		httperror.New(http.StatusNotFound, "not found").Write(w)
		return
	}
	h := w.Header()
	h.Set("Content-Type", a.kind)
	h.Set("Cache-Control", "public, max-age=31536000, immutable")
	h.Set("Vary", "Accept-Encoding")
	content := a.content
	if acceptsGzip(r) {
		h.Set("Content-Encoding", "gzip")
		content = a.packed
	}
	_, _ = w.Write(content) // fails if the reader has closed the connection
}

// acceptsGzip reports whether a request names gzip among the codings that it accepts: "gzip;q=0" names it as one that it does not.
func acceptsGzip(r *http.Request) bool {
	for _, coding := range strings.Split(strings.Join(r.Header.Values("Accept-Encoding"), ","), ",") {
		name, weight, hasWeight := strings.Cut(coding, ";")
		if !strings.EqualFold(strings.TrimSpace(name), "gzip") {
			continue
		}
		q, err := strconv.ParseFloat(strings.TrimPrefix(strings.ToLower(strings.TrimSpace(weight)), "q="), 64)
		return !hasWeight || err == nil && q > 0
	}
	return false
}
