package schema

import (
	"fmt"
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// claim is what a manifest says of an image that another document may define. It
// declares the image where nothing else does, and has to agree with it by
// Longhorn's rule where something does: the kind of source is the same, so are
// the parameters if it has any, and the checksum if both have one.
type claim struct {
	// Where they are in the manifest.
	kindAt, parametersAt, checksumAt document.Path

	kind       string            // in Longhorn's words; "": it but names the image
	parameters map[string]string // see longhornParameters
	checksum   disk.Digest
	cannot     string // why it cannot declare the image, "" if it can
}

// claims translates a claim whose kind of source, parameters and checksum stand
// at three paths.
func (tr *translation) claims(kind, parameters, checksum document.Path) {
	c := &claim{kindAt: kind, parametersAt: parameters, checksumAt: checksum, kind: tr.text(kind)}
	tr.claim = c
	tr.carry(at("checksum"), checksum)
	if digest, err := disk.ParseDigest(tr.text(checksum)); err == nil {
		c.checksum = digest
	}
	if given := tr.get(parameters); given != nil && c.kind != "" {
		c.parameters = claimedParameters(given)
	}
	c.cannot = c.missing()
	if c.kind != "" && c.cannot == "" {
		tr.source(kind, parameters)
		return
	}
	if c.kind != "" {
		tr.foreignParameters(longhornSourceOf(c.kind), parameters)
	}
	// What else the claim says is judged as that of any image.
	tr.set(at("source.upload"), kind, &document.Value{Kind: document.Map, Pos: tr.doc.Pos})
}

// missing says what a claim lacks to declare an image.
func (c *claim) missing() string {
	switch {
	case c.kind == "download" && c.parameters["url"] == "":
		return "download URL is not provided"
	case c.kind == "export-from-volume" && c.parameters["volume-name"] == "":
		return "the volume to export is not provided"
	case c.kind != "" && c.kind != "download" && c.kind != "export-from-volume":
		return c.kind + " is not supported via CSI"
	}
	return ""
}

// claimedParameters are those that have a word here, as texts, with Longhorn's
// defaults; none where there are none at all.
func claimedParameters(given *document.Value) map[string]string {
	p := map[string]string{}
	for _, f := range given.Fields {
		p[f.Name] = strings.TrimSpace(f.Value.Text)
	}
	return p
}

// longhornParameters returns what Longhorn would call the kind and the
// parameters of a source. What only the native form has is not among them.
func longhornParameters(s Source) (kind string, parameters map[string]string) {
	switch s.Kind() {
	case KindDownload:
		return "download", map[string]string{"url": s.Download.URL}
	case KindExportFromVolume:
		e := s.ExportFromVolume
		return "export-from-volume", map[string]string{"volume-name": e.VolumeName, "export-type": string(e.ExportType)}
	case KindRestore:
		return "restore", map[string]string{"backup-url": s.Restore.BackupURL, "concurrent-limit": fmt.Sprint(s.Restore.ConcurrentLimit)}
	case KindClone:
		c := s.Clone
		return "clone", map[string]string{"backing-image": c.BackingImage, "encryption": string(c.Encryption), "secret": c.Secret}
	}
	return "upload", nil
}

// defaultParameters are what Longhorn fills in.
var defaultParameters = map[string]string{"export-type": "raw", "concurrent-limit": "2", "encryption": "ignore"}

// disagreement returns what a claim says otherwise than the definition of the
// image that it names.
func (c *claim) disagreement(m Image) (f document.Problem, disagrees bool) {
	if c.kind == "" {
		return c.otherChecksum(m)
	}
	kind, parameters := longhornParameters(m.Source)
	if c.kind != kind {
		return document.Problem{Path: c.kindAt, Message: fmt.Sprintf("data source is different: image %q comes from %s", m.ID.Name, kind)}, true
	}
	if len(c.parameters) > 0 {
		for _, name := range sortedKeys(parameters) {
			claimed := c.parameters[name]
			if claimed == "" {
				claimed = defaultParameters[name]
			}
			if name == "backing-image" {
				claimed = longhornName(claimed)
			}
			if claimed != parameters[name] {
				return document.Problem{Path: c.parametersAt.With(name), Message: fmt.Sprintf("data source is different: image %q has another %s", m.ID.Name, name)}, true
			}
		}
	}
	return c.otherChecksum(m)
}

func (c *claim) otherChecksum(m Image) (f document.Problem, disagrees bool) {
	if c.checksum.IsZero() || m.Checksum.IsZero() || c.checksum.Algorithm() != m.Checksum.Algorithm() || c.checksum == m.Checksum {
		return document.Problem{}, false
	}
	return document.Problem{Path: c.checksumAt, Message: fmt.Sprintf("checksum mismatch: image %q has another one", m.ID.Name)}, true
}

// declareClaimed lets claims declare the images that nothing else defines. Those of
// images that had a definition, or one of whose claims is in a file that cannot be read
// now, wait until it is known whether what was last said is gone.
func (a *assembly) declareClaimed(l *Loader, afterUnread bool) {
	for k, claims := range a.claims {
		said := l.said[k]
		_, unread := a.unread[origin(said)]
		defined := said != nil && (!said.claims() || unread)
		if len(a.fresh[k]) > 0 || a.holds[k] != nil || defined != afterUnread {
			continue
		}
		if t := declaring(claims, said); t != nil {
			a.fresh[k] = []*thing{t}
			a.place(k, a.fresh[k])
		}
	}
}

func origin(t *thing) string {
	if t == nil {
		return ""
	}
	return t.origin
}

// declaring returns the claim that declares the image, nil if none does: of those that are
// more than its name the first one, by file and line, with a checksum, so that what any of
// them says of the bytes holds; else the first one. A wrong one does where it is the first,
// or in the file of the one that did last.
func declaring(claims []*thing, said *thing) (first *thing) {
	for _, t := range claims {
		wrong := len(t.allProblems()) > 0
		switch {
		case !t.declares():
		case wrong && (first == nil || t.origin == origin(said)),
			!wrong && !t.verdict.translation.claim.checksum.IsZero():
			return t
		case first == nil:
			first = t
		}
	}
	return first
}

// claims reports whether the thing is of a manifest that need not be the
// definition.
func (t *thing) claims() bool { return t.form != nil && t.form.claims }

// declares reports whether a claim is meant to declare its image, too. One that
// is wrong may be.
func (t *thing) declares() bool {
	if len(t.allProblems()) > 0 {
		return true
	}
	c := t.verdict.translation.claim
	return c.kind != "" && c.cannot == ""
}

// checkClaims compares the claims with what holds of their images. What is wrong
// with them hurts no image.
func (a *assembly) checkClaims() {
	for k, claims := range a.claims {
		for _, t := range claims {
			if slices.Contains(a.fresh[k], t) {
				continue
			}
			problems := t.allProblems()
			if len(problems) == 0 {
				problems = a.disagreements(t)
			}
			a.errors = append(a.errors, problems...)
		}
	}
}

func (a *assembly) disagreements(t *thing) []document.Problem {
	c, image := t.verdict.translation.claim, a.holds[t.key]
	switch {
	case image == nil && (a.fresh[t.key] != nil || a.fileUnknown):
		return nil // it is defined, and wrong, or may be in what could not be read
	case image == nil && c.kind != "":
		return []document.Problem{t.problem(document.Problem{Path: c.kindAt, Message: fmt.Sprintf("image %q is not declared, and this cannot declare it: %s", t.name, c.cannot), Hint: document.DidYouMean(t.name, names(a.of(imagesSection)))})}
	case image == nil:
		return []document.Problem{t.problem(document.Problem{Path: t.form.imageAt, Message: fmt.Sprintf("image %q is not declared", t.name), Hint: document.DidYouMean(t.name, names(a.of(imagesSection)))})}
	case a.stale(image):
		return nil
	}
	f, disagrees := c.disagreement(*image.verdict.image)
	if !disagrees {
		return nil
	}
	f.Hint = "Longhorn refuses a volume whose image is not the one that is there"
	p := t.problem(f)
	p.Also = image.pos
	return []document.Problem{p}
}
