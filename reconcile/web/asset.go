package web

import (
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"net/http"

	"github.com/seed-26586806/backing-image-manager/fetch/httperror"
)

// assetLinks returns the address of each file that does not change while the daemon runs. It has a hash of the content, so that
// browsers may keep the file.
func assetLinks(prefix string) map[string]string {
	links := map[string]string{}
	entries, err := fs.ReadDir(files, "assets")
	for _, e := range entries {
		content, readErr := files.ReadFile("assets/" + e.Name())
		if readErr != nil {
			err = readErr
		}
		sum := sha256.Sum256(content)
		links[e.Name()] = prefix + "/assets/" + e.Name() + "?v=" + hex.EncodeToString(sum[:6])
	}
	if err != nil {
		panic("web: read an embedded file: " + err.Error())
	}
	return links
}

func (s *Site) asset(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("file")
	setSecurity(w.Header())
	if s.assets[name] == "" {
		httperror.New(http.StatusNotFound, "not found").Write(w)
		return
	}
	w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	http.ServeFileFS(w, r, files, "assets/"+name)
}
