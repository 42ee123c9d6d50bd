package web

import (
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"mime"
	"net/http"
	"path"

	"github.com/seed-26586806/backing-image-manager/fetch/httperror"
)

// asset is a file that does not change while the daemon runs.
type asset struct {
	content []byte
	kind    string
	link    string // with a hash of the content, so that browsers may keep it
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
		all[e.Name()] = asset{content, mime.TypeByExtension(path.Ext(e.Name())), prefix + "/assets/" + e.Name() + "?v=" + hex.EncodeToString(sum[:6])}
	}
	if err != nil {
		panic("web: read an embedded file: " + err.Error())
	}
	return all
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
	_, _ = w.Write(a.content) // fails if the reader has closed the connection
}
