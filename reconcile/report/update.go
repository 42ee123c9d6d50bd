package report

import (
	"fmt"
	"io"
	"strings"

	"github.com/seed-26586806/backing-image-manager/fetch/text"
)

// UpdateResult is what the command update does with an image.
type UpdateResult string

// The results of images.
const (
	Updated   UpdateResult = "update"
	UpToDate  UpdateResult = "unchanged"
	NotEdited UpdateResult = "refused"
)

// ImageUpdate is one image of an Updates document. Its JSON is a stable interface.
type ImageUpdate struct {
	Image  string       `json:"image"`
	Result UpdateResult `json:"result"`
	// Reason is the code of a refusal, such as pinned-uuid.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	// Incomplete are newer versions that do not count, because they have no checksum yet.
	Incomplete []string `json:"incomplete,omitempty"`
	// From is the declared version. To is the version that the vendor publishes; nil means unknown.
	From *ImageVersion `json:"from"`
	To   *ImageVersion `json:"to,omitempty"`
	// Places are the changed values, as file:line:column.
	Places []string `json:"places,omitempty"`
}

// ImageVersion is a version of an image.
type ImageVersion struct {
	Version  string `json:"version,omitempty"`
	URL      string `json:"url"` // without a query
	Checksum string `json:"checksum,omitempty"`
}

// Updates is the result of the command update.
type Updates struct {
	DryRun bool          `json:"dryRun"`
	Images []ImageUpdate `json:"images"`
}

// NewImageVersion returns a version without the secrets of its address.
func NewImageVersion(version, url, checksum string) *ImageVersion {
	return &ImageVersion{Version: version, URL: text.RedactURL(url), Checksum: checksum}
}

// Count returns how many images have a result.
func (u Updates) Count(r UpdateResult) (n int) {
	for _, i := range u.Images {
		if i.Result == r {
			n++
		}
	}
	return n
}

// Write writes the result in a format: Text, JSON or Markdown.
func (u Updates) Write(w io.Writer, format Format) error {
	return write(w, format, u, u.text, u.markdown)
}

func (u Updates) text() *lines {
	b := &lines{}
	for _, i := range u.Images {
		refused := ""
		if i.Result == NotEdited {
			refused = "refused: "
		}
		b.linef("%s: %s%s", i.Image, refused, i.details())
	}
	b.linef("%s", u.summary())
	return b
}

func (u Updates) summary() string {
	verb := "Updated"
	if u.DryRun {
		verb = "Would update"
	}
	return fmt.Sprintf("%s %s; %d up to date, %d refused.", verb, Count(u.Count(Updated), "image"), u.Count(UpToDate), u.Count(NotEdited))
}

// details returns what a person should know, without the name of the image.
func (i ImageUpdate) details() string {
	text := "up to date"
	switch i.Result {
	case NotEdited:
		return i.Message
	case Updated:
		text = fmt.Sprintf("%s -> %s", versionText(i.From), versionText(i.To))
		if len(i.Places) > 0 {
			text += " in " + strings.Join(i.Places, ", ")
		}
	}
	for _, v := range i.Incomplete {
		text += fmt.Sprintf(" (%s is incomplete: it has no checksum yet)", v)
	}
	return text
}

func versionText(v *ImageVersion) string {
	switch {
	case v.Version != "":
		return v.Version
	case v.Checksum != "":
		return v.Checksum[:min(len(v.Checksum), 19)]
	}
	return "unknown"
}

func (u Updates) markdown() *comment {
	var b comment
	b.linef("### %v", u.summary())
	var updated, refused, incomplete [][]string
	for _, i := range u.Images {
		switch i.Result {
		case Updated:
			updated = append(updated, []string{i.Image, versionText(i.From), versionText(i.To), i.To.URL, i.To.Checksum})
		case NotEdited:
			refused = append(refused, []string{i.Image, i.Message})
		}
		if len(i.Incomplete) > 0 {
			incomplete = append(incomplete, []string{i.Image, strings.Join(i.Incomplete, ", ")})
		}
	}
	b.table("Updated", []string{"Image", "From", "To", "Address", "Checksum"}, updated, 20_000)
	b.table("Refused", []string{"Image", "Reason"}, refused, 5_000)
	b.table("Incomplete", []string{"Image", "Newer versions without a checksum"}, incomplete, 1_000)
	return &b
}
