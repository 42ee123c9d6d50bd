package web

import (
	"net/http"
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch/auth"
	"github.com/seed-26586806/backing-image-manager/fetch/text"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// imageModel is one image with all its generations.
type imageModel struct {
	Name, Title string
	From        string // where the bytes of the source come from, without secrets; "": from an upload
	Image       *schema.Image
	Generations []status.ImageStatus // the declared one first
	Links       map[string]string    // by node: to the image on the page of another node
	Admin       bool
	Here        string // the node of the daemon
	// CanDownload: this node has a ready copy. CanUpload: the image waits for an upload.
	CanDownload, CanUpload bool
	// HasOwnCopies: a disk of this node has a copy. CanRetry: an action on a disk of this node has failed.
	HasOwnCopies, CanRetry bool
}

func newImage(s *snapshot, of request) (any, int) {
	name := of.name
	m := imageModel{Name: name, Admin: of.role >= auth.RoleAdmin, Here: s.doc.Node, Links: map[string]string{}}
	for _, p := range s.doc.Peers {
		if p.Address != "" {
			m.Links[p.Node] = p.Address + "/images/" + name
		}
	}
	all := status.Generations(s.doc.Images, name, nil)
	if len(all) == 0 || all[0].Name != name {
		return m, http.StatusNotFound
	}
	if declared, ok := s.view.Desired.Config.Images[name]; ok {
		m.Image, m.Title, m.From = &declared, declared.Title, text.Redact(declared.Source.From())
	}
	m.Generations = all
	for _, image := range all {
		for _, c := range image.Copies {
			own := c.Node == s.doc.Node
			m.HasOwnCopies = m.HasOwnCopies || own && !c.Absent()
			m.CanRetry = m.CanRetry || own && c.Failure != nil && c.Failure.Attempts > 0
		}
	}
	_, _, err := s.doc.FindReady(name, nil)
	m.CanDownload = err == nil
	m.CanUpload = m.Admin && m.Image != nil && m.Image.Source.Upload != nil && all[0].Ready == 0
	return m, http.StatusOK
}

// checksums returns the digests of a generation that are known, the declared one first.
func checksums(g status.ImageStatus) []string {
	var all []string
	add := func(d ident.Digest) {
		if text := d.String(); !d.IsZero() && !slices.Contains(all, text) {
			all = append(all, text)
		}
	}
	add(g.Checksum)
	for _, c := range g.Copies {
		if c.State == model.Ready {
			add(c.SHA512)
			add(c.SHA256)
		}
	}
	return all
}

// signers returns who signed the copies of a generation.
func signers(g status.ImageStatus) string {
	var all []string
	for _, c := range g.Copies {
		if text := c.Signature.String(); c.Signature.Signer != "" && !slices.Contains(all, text) {
			all = append(all, text)
		}
	}
	return strings.Join(all, ", ")
}
