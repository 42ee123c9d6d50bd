package schema

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// Handle is what a snapshotHandle of CSI says of a backing image, in Longhorn's words:
//
//	bi://backing?backingImage=NAME&backingImageDataSourceType=TYPE&KEY=VALUE…
//
// The values are escaped as in the query of an address, where "+" is a space.
type Handle struct {
	BackingImage string // never empty
	SourceType   string // such as "download" or "export-from-volume"; never empty
	Checksum     string // "": it has none
	// Parameters are those of the source: "url", or "volume-name" and "export-type".
	Parameters map[string]string
}

// The keys of a handle that are not parameters of the source.
const (
	handleImage    = "backingImage"
	handleType     = "backingImageDataSourceType"
	handleChecksum = "backingImageChecksum"
)

const handlePrefix = "bi://"

const handleForm = "write bi://backing?backingImage=NAME&backingImageDataSourceType=TYPE&…"

// maxHandle is the most bytes that a handle may have, escaped.
const maxHandle = 10_000

// ParseHandle reads a handle. It takes whatever Longhorn reads without losing a part
// of it; what Longhorn drops without a word is an error: a broken escape, a key given
// twice, all that follows a "#". The error has a line for each mistake, and none shows
// a value: it may hold a token.
//
// It says nothing of the values. What they declare is checked where they are
// configuration.
func ParseHandle(text string) (Handle, error) {
	h, faults := parseHandle(text)
	if len(faults) > 0 {
		h = Handle{}
	}
	return h, errorOf(faults)
}

// errorOf has a line for each fault.
func errorOf(faults []document.Problem) error {
	errs := make([]error, 0, len(faults))
	for _, f := range faults {
		if len(f.Path) == 0 {
			f.Path = document.Path{"handle"}
		}
		errs = append(errs, errors.New(f.String()))
	}
	return errors.Join(errs...)
}

// parseHandle returns what can be read of a handle, and what is wrong with it.
func parseHandle(text string) (Handle, []document.Problem) {
	query, f := handleQuery(text)
	if f != nil {
		return Handle{}, []document.Problem{*f}
	}
	values, faults := handleValues(query)
	for _, key := range []string{handleImage, handleType} {
		if value, seen := values[key]; !seen {
			faults = append(faults, document.Problem{Message: key + " is missing", Hint: handleForm})
		} else if value != nil && *value == "" {
			faults = append(faults, document.Problem{Message: key + " is empty", Hint: handleForm})
		}
	}
	h := Handle{Parameters: map[string]string{}}
	for key, value := range values {
		if value == nil {
			continue // it cannot be read
		}
		switch key {
		case handleImage:
			h.BackingImage = *value
		case handleType:
			h.SourceType = *value
		case handleChecksum:
			h.Checksum = *value
		default:
			h.Parameters[key] = *value
		}
	}
	return h, faults
}

// handleQuery returns what follows the "?".
func handleQuery(text string) (string, *document.Problem) {
	rest, is := strings.CutPrefix(text, handlePrefix)
	switch {
	case len(text) > maxHandle:
		return "", &document.Problem{Message: fmt.Sprintf("is longer than %d bytes", maxHandle)}
	case ofVolume(text):
		return "", &document.Problem{Message: "is of a snapshot or backup of a volume, not of a backing image", Hint: handleForm}
	case !is:
		return "", &document.Problem{Message: "is no handle of a backing image", Hint: handleForm}
	case !utf8.ValidString(text):
		return "", &document.Problem{Message: "is not UTF-8"}
	case strings.ContainsFunc(text, unicode.IsControl):
		return "", &document.Problem{Message: "has a line break or another control character in it", Hint: "write it on one line"}
	case strings.Contains(text, "#"):
		return "", &document.Problem{Message: "has a # in it, and what follows is lost", Hint: "write %23"}
	}
	authority, query, _ := strings.Cut(rest, "?")
	if _, err := url.Parse("bi://" + authority); err != nil {
		return "", &document.Problem{Message: "has something odd before the ?", Hint: handleForm}
	}
	if query == "" {
		return "", &document.Problem{Message: "says nothing", Hint: handleForm}
	}
	return query, nil
}

// ofVolume reports whether a handle is one of Longhorn's other ones.
func ofVolume(handle string) bool {
	return strings.HasPrefix(handle, "snap://") || strings.HasPrefix(handle, "bak://") || strings.HasPrefix(handle, "bs://")
}

// handleValues reads the pairs of a query: a value that cannot be read is nil.
func handleValues(query string) (map[string]*string, []document.Problem) {
	values := map[string]*string{}
	var faults []document.Problem
	for pair := range strings.SplitSeq(query, "&") {
		if pair == "" {
			continue
		}
		key, value, f := handlePair(pair)
		if _, seen := values[key]; seen && key != "" {
			f = &document.Problem{Message: shownKey(key) + " is given twice", Hint: "keep one of them"}
		} else if f == nil {
			values[key] = &value
		} else if key != "" {
			values[key] = nil
		}
		if f != nil {
			faults = append(faults, *f)
		}
	}
	return values, faults
}

func handlePair(pair string) (key, value string, f *document.Problem) {
	rawKey, rawValue, _ := strings.Cut(pair, "=")
	key, err := url.QueryUnescape(rawKey)
	if err != nil || !utf8.ValidString(key) || key == "" {
		return "", "", &document.Problem{Message: "has a key that cannot be read", Hint: "a & in a value is written %26"}
	}
	value, err = url.QueryUnescape(rawValue)
	switch {
	case err != nil:
		f = &document.Problem{Message: shownKey(key) + " has a % that begins no escape", Hint: "write %25"}
	case strings.Contains(pair, ";"):
		f = &document.Problem{Message: shownKey(key) + " has a ; in it, with which Longhorn drops it", Hint: "write %3B"}
	case !utf8.ValidString(value):
		f = &document.Problem{Message: shownKey(key) + " is not UTF-8"}
	}
	return key, value, f
}

// shownKey is a key as a message may have it.
func shownKey(key string) string {
	if showable(key) && !strings.Contains(key, " ") {
		return key
	}
	return fmt.Sprintf("%.40q", key)
}

// Encode writes the handle, which ParseHandle and Longhorn read as the same again. Its
// keys are in the order of Longhorn's own handles, so that where nothing has to be
// escaped both are equal; unlike those it escapes what has to be. It fails where the
// handle is none: without a name or a type, with what is not UTF-8, too long.
func (h Handle) Encode() (string, error) {
	values := url.Values{}
	for key, value := range h.Parameters {
		if key == "" || key == handleImage || key == handleType || key == handleChecksum {
			return "", fmt.Errorf("encode handle: %q is no parameter of a source", key)
		}
		values.Set(key, value)
	}
	values.Set(handleImage, h.BackingImage)
	values.Set(handleType, h.SourceType)
	if h.Checksum != "" {
		values.Set(handleChecksum, h.Checksum)
	}
	for key, value := range values {
		if !utf8.ValidString(key) || !utf8.ValidString(value[0]) {
			return "", fmt.Errorf("encode handle: %s is not UTF-8", shownKey(key))
		}
	}
	if h.BackingImage == "" || h.SourceType == "" {
		return "", fmt.Errorf("encode handle: it needs %s and %s", handleImage, handleType)
	}
	// A space as "+" is right, too, but only for those who know that this is a query.
	text := handlePrefix + "backing?" + strings.ReplaceAll(values.Encode(), "+", "%20")
	if len(text) > maxHandle {
		return "", fmt.Errorf("encode handle: it would be longer than %d bytes", maxHandle)
	}
	return text, nil
}

var snapshotContentForm = &form{
	group: snapshotGroup, versions: snapshotVersions, kind: "VolumeSnapshotContent", definition: "#VolumeSnapshotContent",
	common: true, claims: true, imageAt: handleAt.With(handleImage),
	take: (*content).snapshotContent, translate: translateSnapshotContent,
}

var handleAt = at("spec.source.snapshotHandle")

// snapshotContent reads a VolumeSnapshotContent, which says something of an image if it
// has a handle of one.
func (c *content) snapshotContent(f *form, doc *document.Value) {
	handle, _ := doc.Find(handleAt, doc.Pos)
	driver := doc.TextAt("spec", "driver")
	by, _ := doc.Find(document.Path{"spec", "driver"}, doc.Pos)
	switch {
	case c.nearProvisioner("driver", document.Path{"spec", "driver"}, by):
		return
	case driver != "" && driver != provisioner:
		c.skip(doc, "is of another driver than "+provisioner)
		return
	case handle == nil && doc.TextAt("spec", "source", "volumeHandle") != "":
		c.skip(doc, "was made by Kubernetes for a VolumeSnapshot")
		return
	case handle != nil && ofVolume(handle.Text):
		c.skip(doc, "is of a snapshot or backup of a volume")
		return
	}
	m, ok := c.named(f, doc)
	switch {
	case !ok:
	case handle == nil || handle.Kind != document.Text:
		p := noHandle(doc).Placed(nil, doc, m.pos)
		c.problem(p.Position, handleAt, p.Message, p.Hint)
	default:
		m.pos = handle.Pos
		c.handle(m, handle)
	}
}

// noHandle says what is wrong with a VolumeSnapshotContent that has no text as its
// handle.
func noHandle(doc *document.Value) document.Problem {
	f := document.Problem{Path: handleAt, Message: "is missing", Hint: handleForm}
	if handle, _ := doc.Find(handleAt, doc.Pos); handle != nil {
		f.Message = "has to be a text, not " + handle.Kind.String()
	} else if source, _ := doc.Find(handleAt.Parent(), doc.Pos); source != nil {
		for _, given := range source.Fields {
			if _, near := document.Nearest(given.Name, []string{"snapshotHandle"}); near {
				f.Hint = fmt.Sprintf("%q is not known there", document.Printable(given.Name))
			}
		}
	}
	return f
}

// handle puts the mapping of what a handle says in the place of its text.
func (c *content) handle(m manifest, v *document.Value) {
	h, faults := parseHandle(v.Text)
	for i := range faults {
		faults[i].Path = handleAt
	}
	if len(faults) == 0 {
		for _, f := range h.faults() {
			f.Path = append(slices.Clip(handleAt), f.Path...)
			faults = append(faults, f)
		}
	}
	if h.BackingImage == "" { // nobody knows of which image it is
		for _, f := range faults {
			c.problem(v.Pos, f.Path, f.Message, f.Hint)
		}
		return
	}
	*v = *h.value(v.Pos)
	t := c.claim(m, key{imagesSection, longhornName(h.BackingImage)})
	t.sum = t.value.Sum()
	if len(faults) > 0 {
		if t.verdict == nil {
			t.verdict = &verdict{}
		}
		t.verdict.faults = append(t.verdict.faults, faults...)
	}
}

// The parameters of the source, in the mapping that a handle is.
const handleParameters = "parameters"

// value is the handle as a mapping, all of it at one place.
func (h Handle) value(pos document.Position) *document.Value {
	v := &document.Value{Kind: document.Map, Pos: pos}
	add := func(to *document.Value, name, text string) {
		to.Fields = append(to.Fields, document.Field{Name: name, Pos: pos, Value: &document.Value{Kind: document.Text, Text: text, Pos: pos}})
	}
	add(v, handleImage, h.BackingImage)
	add(v, handleType, h.SourceType)
	add(v, handleChecksum, h.Checksum)
	if len(h.Parameters) > 0 {
		parameters := &document.Value{Kind: document.Map, Pos: pos}
		for _, name := range sortedKeys(h.Parameters) {
			add(parameters, name, h.Parameters[name])
		}
		v.Fields = append(v.Fields, document.Field{Name: handleParameters, Pos: pos, Value: parameters})
	}
	return v
}

// faults are what no handle of an image that can be says, by their paths in the
// handle. What is said of the values elsewhere, too, is not among them.
func (h Handle) faults() []document.Problem {
	var all []document.Problem
	i := slices.IndexFunc(longhornSources, func(s longhornSource) bool { return s.name == h.SourceType })
	if i < 0 {
		var known []string
		for _, s := range longhornSources {
			known = append(known, s.name)
		}
		return []document.Problem{{Path: document.Path{handleType}, Message: "unknown kind of source " + shownKey(h.SourceType), Hint: document.DidYouMean(h.SourceType, known)}}
	}
	for _, name := range sortedKeys(h.Parameters) {
		at := document.Path{handleParameters, name}
		switch {
		case name == "checksum":
			all = append(all, document.Problem{Path: at, Message: "is no parameter of a source, and equal to that of no image", Hint: "write " + handleChecksum})
		case !slices.ContainsFunc(longhornSources[i].parameters, func(p parameter) bool { return p.longhorn == name }):
			all = append(all, document.Problem{Path: at, Message: "is no parameter of " + h.SourceType, Hint: longhornSources[i].known() + "; a & in a value is written %26"})
		case strings.Contains(h.Parameters[name], " "):
			all = append(all, document.Problem{Path: at, Message: "has a space in it", Hint: "a + is a space in a handle: write %2B"})
		}
	}
	return all
}

// Check says why no configuration may have the handle, whatever images there are. It has
// a line for each mistake.
func (h Handle) Check() error {
	faults := h.faults()
	if err := checkThingName(key{imagesSection, longhornName(h.BackingImage)}); err != nil {
		faults = append(faults, document.Problem{Path: document.Path{handleImage}, Message: err.Error()})
	}
	return errorOf(faults)
}

// Declares reports whether the handle is meant to declare its image where nothing else
// does. Any other but names one that is there.
func (h Handle) Declares() bool {
	return len(h.Parameters) > 0 && (h.SourceType == "download" || h.SourceType == "export-from-volume")
}

func translateSnapshotContent(tr *translation) {
	image := handleAt.With(handleImage)
	tr.rename(image, tr.text(image))
	tr.claims(handleAt.With(handleType), handleAt.With(handleParameters), handleAt.With(handleChecksum))
	c := tr.claim
	if c.cannot == "" && c.kind == "export-from-volume" && c.parameters["export-type"] == "" {
		c.cannot = "export-type is not provided"
	}
	if ref := at("volumeSnapshotRef"); tr.get(ref) != nil {
		tr.warn(ref, "does not stand in spec, where Kubernetes wants it", fmt.Sprintf("indent it like %q", "source"))
	}
}
