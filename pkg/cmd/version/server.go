package version

import (
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/version"
)

func gitVersion(raw []byte) (string, error) {
	var info version.Info
	if err := json.Unmarshal(raw, &info); err != nil {
		return "", fmt.Errorf("the server's answer to /version is no version: %w", err)
	}
	return info.GitVersion, nil
}
